"""Warms a process up with an invented request: libraries finish loading in the first steps, which are slow."""

from collections.abc import Callable

from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.pooling_params import PoolingParams, Tasks
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import Chunk, ModelRunnerOutput, NewRow, SchedulerOutput

NUM_TOKENS = 4  # of the invented request: two of prompt, one by its prefill, one by its decode step
NO_STEP = 0  # the core counts from 1


def warm_up(
    execute: Callable[[SchedulerOutput], ModelRunnerOutput],
    max_model_len: int,
    num_groups: int = 1,
    tasks: Tasks = ("generate",),
) -> None:
    """Take an invented request through a prefill, a decode step and its end. Row 0 and block 0 are free then; that all
    KV groups write the same block does not matter to what it is for.

    Every rank of a group does it, as it does any step. Where there are no tokens to sample, a vector ends it.
    """
    if max_model_len < NUM_TOKENS:
        return
    tables = (pack_ids([0]),) * num_groups
    if "generate" not in tasks:
        pooling = PoolingParams("embed" if "embed" in tasks else "classify")
        row = NewRow(0, pack_ids([0, 0]), 2, 0, tables, 0, (), SamplingParams(), pooling)
        execute(SchedulerOutput(0, NO_STEP, new_rows=(row,), chunks=(Chunk(0, 2),)))
        return
    params = SamplingParams(top_p=0.9)
    row = NewRow(0, pack_ids([0, 0]), 2, 0, tables, seed=0, eos_token_ids=(), sampling_params=params)
    execute(SchedulerOutput(0, NO_STEP, new_rows=(row,), chunks=(Chunk(0, 2),)))
    execute(SchedulerOutput(0, NO_STEP, decode_joins=pack_ids([0])))
    execute(SchedulerOutput(0, NO_STEP, decode_leaves=pack_ids([0])))
