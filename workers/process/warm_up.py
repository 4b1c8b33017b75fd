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
    generates = "generate" in tasks
    row = NewRow(
        row=0,
        token_ids=pack_ids([0, 0]),
        prompt_len=2,
        num_computed_tokens=0,
        block_tables=(pack_ids([0]),) * num_groups,
        seed=0,
        eos_token_ids=(),
        sampling_params=SamplingParams(top_p=0.9) if generates else SamplingParams(),
        pooling_params=None if generates else PoolingParams("embed" if "embed" in tasks else "classify"),
    )
    execute(SchedulerOutput(0, NO_STEP, new_rows=(row,), chunks=(Chunk(0, 2),)))
    if generates:
        execute(SchedulerOutput(0, NO_STEP, decode_joins=pack_ids([0])))
        execute(SchedulerOutput(0, NO_STEP, decode_leaves=pack_ids([0])))
