"""Warms up a process with a dummy request: the first steps are slow, because libraries finish loading in them."""

from collections.abc import Callable

from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.pooling_params import PoolingParams, Tasks
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import Chunk, ModelRunnerOutput, NewRow, SchedulerOutput

NUM_TOKENS = 4  # of the dummy request: two of the prompt, one sampled by the prefill, one by the decode step
NO_STEP = 0  # the core counts from 1


def warm_up(
    execute: Callable[[SchedulerOutput], ModelRunnerOutput],
    max_model_len: int,
    num_groups: int = 1,
    tasks: Tasks = ("generate",),
) -> None:
    """Run a dummy request in row 0 and block 0, which are still free: a prefill and a decode step, or a pooling step.

    All ranks of a group must call it, since they exchange sums. All KV groups write to the same block; this does no
    harm, because the results are discarded.
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
