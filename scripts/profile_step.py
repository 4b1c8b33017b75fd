"""Profile one decode step: CPU milliseconds by kernel, and the time of the Python code around the kernels.

    taskset -c 0 python scripts/profile_step.py MODEL --rows 1,32 --context 128 --threads 1 --set temperature=0.8

One process without an engine: a ModelRunner executes steps of only the decode set, first as in a server, with the
forward pass in one call, then with one call from Python per kernel, which gives the time of each. With one thread,
times are CPU time, which other load does not change; with more threads they are wall time. The last line is JSON.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from paged_serve.protocol.messages.config import ModelConfig, SchedulerConfig
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import Chunk, NewRow, SchedulerOutput
from paged_serve.workers.distributed.allocator import keep_freed_memory
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.runner.host_runner import host_runner
from paged_serve.workers.runner.model_runner import ModelRunner

BLOCK_SIZE, CHUNK = 16, 512


class Profile:
    """Measures the time spent in each kernel of a pool, and the overhead of the measurement."""

    def __init__(self, pool: cpu.Pool, clock: Callable[[], float]):
        self.spent: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._clock = clock
        self._pool = pool
        nothing = self._watched("nothing", lambda *_: None)
        started = clock()
        for _ in range(1000):
            nothing()
        self.inside_s = self.spent.pop("nothing") / self.calls.pop("nothing")  # overhead per call inside it
        self.outside_s = (clock() - started) / 1000 - self.inside_s

    def of_steps(self, runner: ModelRunner, steps: int, *, programs: bool) -> dict[str, Any]:
        """Milliseconds and calls per step by kernel, and the milliseconds of everything else."""
        plan = SchedulerOutput(0, 1)
        self.spent.clear()
        self.calls.clear()
        with self._pool.watched(self._watched, programs=programs):
            total_s = sum(time_of(runner, plan, self._clock) for _ in range(steps))
        calls = {name: count / steps for name, count in self.calls.items()}
        kernels = {name: 1e3 * (spent / steps - calls[name] * self.inside_s) for name, spent in self.spent.items()}
        watching_ms = 1e3 * sum(calls.values()) * (self.inside_s + self.outside_s)
        rest_ms = 1e3 * total_s / steps - sum(kernels.values()) - watching_ms
        return {"kernels_ms": kernels, "calls": calls, "rest_ms": rest_ms}

    def _watched(self, name: str, function: Any) -> Any:
        def call(*arguments: Any) -> None:
            started = self._clock()
            function(*arguments)
            self.spent[name] += self._clock() - started
            self.calls[name] += 1

        return call


def runner_with_rows(model: Any, rows: int, context: int, steps: int, params: SamplingParams) -> ModelRunner:
    """`rows` requests of `context` random tokens each, all in the decode set."""
    length = context + steps + 3  # the first token, the step that joins, and one more
    blocks = -(-length // BLOCK_SIZE)
    cache = KVCache.allocate(model.geometry, rows * blocks, BLOCK_SIZE)
    scheduler = SchedulerConfig(max_num_seqs=rows)
    runner = host_runner(model, cache, TensorParallelGroup(), scheduler, length)
    rng = np.random.default_rng(0)
    for row in range(rows):
        tokens = rng.integers(0, model.geometry.vocab_size, context).tolist()
        ids = pack_ids(range(row * blocks, (row + 1) * blocks))
        new = (NewRow(row, pack_ids(tokens), context, 0, (ids,), row, (), params),)
        for start in range(0, context, CHUNK):
            runner.execute(SchedulerOutput(0, 1, new, chunks=(Chunk(row, min(CHUNK, context - start)),)))
            new = ()
    runner.execute(SchedulerOutput(0, 1, decode_joins=pack_ids(range(rows))))
    return runner


def measure(pool: cpu.Pool, runner: ModelRunner, steps: int, clock: Callable[[], float]) -> dict[str, Any]:
    """A third of the steps without timers, a third with timers around Python's calls, a third around every kernel."""
    plan = SchedulerOutput(0, 1)
    times = [time_of(runner, plan, clock) for _ in range(steps)]
    profile = Profile(pool, clock)
    return {
        "step_ms": 1e3 * statistics.median(times),
        "fastest_ms": 1e3 * min(times),
        "in_one_call": profile.of_steps(runner, steps, programs=True),
        "kernel_by_kernel": profile.of_steps(runner, steps, programs=False),
    }


def time_of(runner: ModelRunner, plan: SchedulerOutput, clock: Callable[[], float]) -> float:
    started = clock()
    runner.execute(plan)
    return clock() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rows", default="1,32")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=NUMBER", help="a sampling parameter")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    library = cpu.best_library()
    assert library is not None, "the kernels are not built: python setup.py build_ext --inplace"
    pool = cpu.Pool(library, list(range(options.threads)) if options.threads > 1 else [-1])
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    config = ModelConfig(device="cpu", quantization=options.quantization)
    model = load_model(options.model, config, TensorParallelGroup(), lambda done, total: None, pool)
    given = {name: json.loads(value) for name, value in (text.split("=") for text in options.set)}
    params = SamplingParams(**({"temperature": 0.0} | given))
    results = {}
    for rows in map(int, options.rows.split(",")):
        runner = runner_with_rows(model, rows, options.context, 3 * options.steps, params)
        found = results[rows] = measure(pool, runner, options.steps, clock)
        print(f"{rows} rows: {found['step_ms']:.2f} ms per step, the fastest {found['fastest_ms']:.2f}")
        for way in ("in_one_call", "kernel_by_kernel"):
            print(way.replace("_", " "))
            for name, spent in sorted(found[way]["kernels_ms"].items(), key=lambda item: -item[1]):
                print(f"  {name:18s} {spent:8.3f} ms {found[way]['calls'][name]:5.0f} calls")
            print(f"  {'the rest':18s} {found[way]['rest_ms']:8.3f} ms")
    print(json.dumps({"model": options.model, "isa": library.isa, "threads": options.threads, "steps": results}))


if __name__ == "__main__":
    main()
