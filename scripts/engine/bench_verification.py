"""Measure steps that verify drafts beside plain decode steps, in alternation, in one process without an engine.

    taskset -c 0,1 python scripts/engine/bench_verification.py MODEL --threads 2 --rows 1,4 --positions 2,4,8

A step of N positions verifies N - 1 drafts for each row. The drafts are right (all are accepted, in N rounds of
sampling), or wrong (none is); "2 of 3" has three drafts, of which the last is wrong, so a step yields three tokens, and
"times" is the speed-up by it. Times are medians in milliseconds; the last line is JSON.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from paged_serve.protocol.messages.config import ModelConfig, SchedulerConfig
from paged_serve.protocol.messages.message import pack_ids, unpack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import Chunk, NewRow, SchedulerOutput
from paged_serve.workers.distributed.allocator import keep_freed_memory
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.kv.cache_layout import CacheLayout
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.layers.model import Model
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.runner.host_runner import host_runner
from paged_serve.workers.runner.model_runner import ModelRunner
from paged_serve.workers.speculation.drafter import DraftRequest

BLOCK_SIZE, CONTEXT = 16, 128
ALL = 64  # drafts at most


class FixedDrafter:
    """Drafts the tokens of a known text, or others."""

    def __init__(self) -> None:
        self.texts: list[list[int]] = []
        self.num_right = ALL

    def draft(self, requests: Sequence[DraftRequest]) -> list[NDArray[np.int32]]:
        found = []
        for request in requests:
            start = len(request.tokens)
            tokens = np.array(self.texts[request.row][start : start + request.most], np.int32)
            found.append(np.concatenate((tokens[: self.num_right], tokens[self.num_right :] ^ 1)))
        return found


class Rows:
    """Requests of CONTEXT random tokens each."""

    def __init__(self, model: Model, count: int, length: int, drafter: FixedDrafter):
        layout = CacheLayout.of(model.geometry, length, BLOCK_SIZE)
        blocks, groups = -(-length // layout.block_size), len(layout.groups.windows)
        shape = model.geometry, count * groups * blocks, layout.block_size
        cache = KVCache.allocate(*shape, groups=layout.groups)
        scheduler = SchedulerConfig(max_num_seqs=count)
        self.runner: ModelRunner = host_runner(model, cache, TensorParallelGroup(), scheduler, length, drafter=drafter)
        self.all = pack_ids(range(count))
        rng = np.random.default_rng(0)
        self.texts: list[list[int]] = []
        for row in range(count):
            tokens = rng.integers(0, model.geometry.vocab_size, CONTEXT).tolist()
            tables = range(row * groups, (row + 1) * groups)
            ids = tuple(pack_ids(range(table * blocks, (table + 1) * blocks)) for table in tables)
            new = (NewRow(row, pack_ids(tokens), CONTEXT, 0, ids, row, (), SamplingParams(temperature=0.0)),)
            output = self.runner.execute(SchedulerOutput(0, 1, new, chunks=(Chunk(row, CONTEXT),)))
            self.texts.append([*tokens, *unpack_ids(output.token_ids)])
        self.count = count

    def decode(self) -> list[int]:
        return unpack_ids(self.runner.execute(SchedulerOutput(0, 1, decode_joins=self.all)).token_ids)

    def verify(self, drafts: int) -> None:
        chunks = tuple(Chunk(row, 1, drafts) for row in range(self.count))
        self.runner.execute(SchedulerOutput(0, 1, decode_leaves=self.all, chunks=chunks))


def times_of(model: Model, count: int, positions: Sequence[int], rounds: int) -> dict[str, float]:
    drafter = FixedDrafter()
    length = CONTEXT + (rounds + 2) * (2 * sum(positions) + 8) + 80
    plain = Rows(model, count, length, drafter)
    for _ in range(length - CONTEXT - 80):
        for text, token in zip(plain.texts, plain.decode(), strict=True):
            text.append(token)
    drafter.texts = plain.texts
    rows = Rows(model, count, length, drafter)
    found = defaultdict(list)
    for turn in range(rounds + 2):
        ways = [
            ("decode", 0, ALL),
            ("2 of 3", 4, 2),
            *((f"right {n}", n, ALL) for n in positions),
            *((f"wrong {n}", n, 0) for n in positions),
        ]
        for name, number, num_right in ways:
            drafter.num_right = num_right
            started = time.perf_counter()
            rows.verify(number - 1) if number > 1 else rows.decode()
            if turn > 1:  # earlier ones record the kernels
                found[name].append(1e3 * (time.perf_counter() - started))
    medians = {name: statistics.median(each) for name, each in found.items()}
    return medians | {"2 of 3 times": 3 * medians["decode"] / medians["2 of 3"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", default="1,4")
    parser.add_argument("--positions", default="2,4,8")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quantization", default="auto")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    library = cpu.best_library()
    assert library is not None, "the kernels are not built: python setup.py build_ext --inplace"
    pool = cpu.Pool(library, list(range(options.threads)))
    config = ModelConfig(device="cpu", quantization=options.quantization)
    model = load_model(options.model, config, TensorParallelGroup(), lambda done, total: None, pool)
    positions = [int(number) for number in options.positions.split(",")]
    results = {}
    for count in map(int, options.rows.split(",")):
        results[count] = times_of(model, count, positions, options.rounds)
        print(f"{count} rows: " + ", ".join(f"{name} {value:.2f}" for name, value in results[count].items()))
    print(json.dumps({"model": options.model, "ms": results}))


if __name__ == "__main__":
    main()
