"""Steps for a model whose kernels run in one call, and the counts of its calls."""

from collections import Counter
from contextlib import contextmanager

from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import Chunk, ModelRunnerOutput, NewRow, SchedulerOutput
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.kv.kv_groups import KVGroups
from paged_serve.workers.runner.model_runner import ModelRunner

from ..host_runners import new_host_runner

NUM_ROWS, BLOCK_SIZE = 8, 16
ALL_LOGPROBS = SamplingParams(temperature=0.0, logprobs=-1)  # the bits of every logit


def new_runner(model, max_len: int = 256, groups: KVGroups | None = None) -> ModelRunner:
    num_blocks = NUM_ROWS * max_len // BLOCK_SIZE * (len(groups.windows) if groups else 1)
    cache = KVCache.allocate(model.geometry, num_blocks, BLOCK_SIZE, groups=groups)
    return new_host_runner(model, cache, NUM_ROWS, max_len)


def kernel_by_kernel(pool):
    return pool.watched(lambda name, kernel: kernel)


@contextmanager
def counting(pool, *, programs=True):
    calls = Counter()

    def watch(name, kernel):
        def call(*arguments):
            calls[name] += 1
            kernel(*arguments)

        return call

    with pool.watched(watch, programs=programs):
        yield calls


def prefill(row: int, length: int, max_len: int = 256, num_groups: int = 1) -> SchedulerOutput:
    """A whole prompt in one chunk, with blocks for its longest output."""
    blocks = max_len // BLOCK_SIZE
    tables = range(row * num_groups, (row + 1) * num_groups)
    new = NewRow(
        row=row,
        token_ids=pack_ids((7 * row + 3 * i) % 290 for i in range(length)),
        prompt_len=length,
        num_computed_tokens=0,
        block_tables=tuple(pack_ids(range(table * blocks, (table + 1) * blocks)) for table in tables),
        seed=row,
        eos_token_ids=(),
        sampling_params=ALL_LOGPROBS,
    )
    return SchedulerOutput(1, 1, (new,), chunks=(Chunk(row, length),))


def join(*rows: int) -> SchedulerOutput:
    return SchedulerOutput(1, 1, decode_joins=pack_ids(rows))


STEADY = SchedulerOutput(1, 1)


def programs_run(runner: ModelRunner, pool, plans: list[SchedulerOutput]) -> list[int]:
    """The number of recorded programs that each step runs."""
    seen = []
    for plan in plans:
        with counting(pool) as calls:
            runner.execute(plan)
        seen.append(calls["run_program"])
    return seen


def contents(output: ModelRunnerOutput) -> tuple[object, ...]:
    return output.token_ids, output.logprobs, output.nan_indices


def same_both_ways(make, plans: list[SchedulerOutput], max_len: int = 256) -> None:
    """Run `plans` through one model as usual and through an equal one kernel by kernel, and compare the outputs."""
    (model, _), (twin, pool) = make(), make()
    runner, other = new_runner(model, max_len), new_runner(twin, max_len)
    for plan in plans:
        with kernel_by_kernel(pool):
            expected = other.execute(plan)
        assert contents(runner.execute(plan)) == contents(expected)
