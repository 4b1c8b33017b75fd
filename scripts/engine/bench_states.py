"""What the states of recurrent layers cost: a decode step by context, and the checkpoints of a prompt.

    python scripts/engine/bench_states.py MODEL [--threads 2] [--steps 30]

A decode step of a recurrent layer reads and writes one state, whatever the context; attention layers read more with it.
Checkpoints are the states that a prompt leaves at each border of blocks: the same prompt is computed with a server's
block size and with blocks of 1024 tokens. Both alternate, and medians are printed with the load of the machine.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.batch.input_batch import InputBatch
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kernels.cpu.library import Pool, best_library
from paged_serve.workers.kv.cache_layout import CacheLayout
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.layers.model import Model
from paged_serve.workers.models.loading import load_model

CONTEXTS = (1024, 32_768)
PROMPT, LARGE_BLOCK = 2048, 1024


def batch_of(cache: KVCache, context: int, count: int) -> InputBatch:
    """The last `count` of `context` tokens of one row. Its blocks hold anything; their number is that of a server."""
    positions = torch.arange(context - count, context)
    blocks = -(-context // cache.block_size)
    table = torch.arange(blocks, dtype=torch.int32).unsqueeze(0) % len(next(each for each in cache.states if len(each)))
    slots = table[0, positions // cache.block_size].long() * cache.block_size + positions % cache.block_size
    num_groups = len(cache.groups.windows)
    return InputBatch(
        token_ids=torch.zeros(count, dtype=torch.int64),
        positions=positions,
        row_starts=torch.tensor([0, count], dtype=torch.int32),
        kv_lens=torch.tensor([context], dtype=torch.int32),
        longest=context,
        block_tables=[table] * num_groups,
        slots=[slots] * num_groups,
        logit_tokens=torch.tensor([count - 1]),
        num_decode_rows=int(count == 1),
    )


def forward(model: Model, cache: KVCache, context: int, count: int) -> Callable[[], object]:
    batch = batch_of(cache, context, count)
    return lambda: model.forward(batch, cache)


def cache_of(model: Model, block_size: int) -> KVCache:
    """A cache for the longest context, zeroed, so that no step computes with NaN."""
    layout = CacheLayout.of(model.geometry, max(CONTEXTS), block_size)
    blocks = -(-max(CONTEXTS) // layout.block_size)
    cache = KVCache.allocate(model.geometry, blocks, layout.block_size, groups=layout.groups)
    for tensor in (*cache.keys, *cache.values, *cache.states):
        tensor.zero_()
    return cache


def medians(work: dict[str, Callable[[], object]], steps: int) -> dict[str, float]:
    """Seconds of each kind of work, all kinds in turn."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(steps):
        for name, run in work.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    library = best_library()
    assert library is not None, "the kernels are not built"
    pool = Pool(library, [-1] * options.threads)
    model = load_model(options.model, ModelConfig(device="cpu"), TensorParallelGroup(), lambda done, of: None, pool)
    usual = cache_of(model, 16)
    large = cache_of(model, max(usual.block_size, LARGE_BLOCK))
    decode = {f"decode at {context}": forward(model, usual, context, 1) for context in CONTEXTS}
    prompts = {
        f"prompt of {PROMPT}, blocks of {cache.block_size}": forward(model, cache, PROMPT, PROMPT)
        for cache in (usual, large)
    }
    for work, count in ((decode, options.steps), (prompts, max(3, options.steps // 5))):
        found = medians(work, count)
        first = next(iter(found.values()))
        for name, seconds in found.items():
            print(f"{name:40} {1000 * seconds:9.3f} ms  {seconds / first:6.3f}")
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
