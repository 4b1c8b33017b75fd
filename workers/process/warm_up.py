"""Warms a process up with an invented request: libraries finish loading in the first steps, which are slow."""

from collections.abc import Callable

from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import Chunk, ModelRunnerOutput, NewRow, SchedulerOutput

NUM_TOKENS = 4  # of the invented request: two of prompt, one by its prefill, one by its decode step
NO_STEP = 0  # the core counts from 1


def warm_up(execute: Callable[[SchedulerOutput], ModelRunnerOutput], max_model_len: int) -> None:
    """Take an invented request through a prefill, a decode step and its end. Row 0 and block 0 are free then.

    Every rank of a group does it, as it does any step.
    """
    if max_model_len < NUM_TOKENS:
        return
    params = SamplingParams(top_p=0.9)
    row = NewRow(0, pack_ids([0, 0]), 2, 0, pack_ids([0]), seed=0, eos_token_ids=(), sampling_params=params)
    execute(SchedulerOutput(0, NO_STEP, new_rows=(row,), chunks=(Chunk(0, 2),)))
    execute(SchedulerOutput(0, NO_STEP, decode_joins=pack_ids([0])))
    execute(SchedulerOutput(0, NO_STEP, decode_leaves=pack_ids([0])))
