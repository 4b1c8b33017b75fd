"""The memory of a CUDA device that is left for the KV cache: measured, because libraries take an unknown share."""

from itertools import accumulate

import torch

from paged_serve.protocol.errors import MemoryShortage
from paged_serve.protocol.messages.config import Config

from ..backends.cuda.backend import CudaBackend
from ..batch.input_batch import InputBatch
from ..distributed.tensor_parallel import TensorParallelGroup
from ..kv.budget import cache_dtype, layout_of, max_model_len
from ..kv.kv_cache import KVCache
from ..layers.model import Model
from .cuda_device import CudaDevice
from .cuda_graphs import ladder
from .cuda_runner import cuda_runner

GRAPHS_MEASURED = 2  # the largest sizes: the first graph allocates shared memory and its own, the second only its own


def cuda_budget(config: Config, model: Model, group: TensorParallelGroup, device: CudaDevice) -> int:
    """Bytes for this rank's KV cache, measured by one step of the largest size. Raises MemoryShortage if none are left.

    Ranks exchange sums in this step and in those of graphs, so all ranks must call this at the same point.
    """
    for_a_step = device.peak_bytes(lambda: _largest_step(model, config))
    has_graphs = isinstance(model.backend, CudaBackend) and model.geometry.head == "tokens"
    used = _used_with_graphs(config, model, group, device) if has_graphs else None
    taken = (device.used_bytes() if used is None else used) + for_a_step
    return kv_budget(config.cache.gpu_memory_utilization, device.total_bytes(), taken + model.adapters_bytes)


def kv_budget(share: float, total: int, taken: int) -> int:
    """The bytes left of `share` of a device's `total` bytes; `taken` bytes are in use, or will be during a step."""
    budget = int(total * share) - taken
    if budget <= 0:
        needed = (int(total * share) - budget) / total
        raise MemoryShortage(
            f"gpu_memory_utilization={share:g} of {total} bytes leaves nothing for the KV cache: {taken} bytes are "
            "taken by weights, a full step, graphs of decode steps and others; "
            + (
                f"raise gpu_memory_utilization above {needed:.2f}, or lower max_num_batched_tokens or max_num_seqs"
                if needed < 1
                else "use tensor_parallel_size, a smaller model or max_num_batched_tokens, or free the device"
            )
        )
    return budget


def _used_with_graphs(config: Config, model: Model, group: TensorParallelGroup, device: CudaDevice) -> int:
    """Bytes in use by a runner with graphs of all sizes, without its KV cache.

    The largest graphs are captured on trial with a cache of one block, which padding neither reads nor writes. Each
    graph after the first is counted like the second: it has at most as many nodes, and shares the first one's memory.
    """
    cache = _cache(model, config, 1)
    sizes = ladder(config.scheduler.max_num_seqs)
    longest = max_model_len(config, model.geometry)
    largest = sizes[-GRAPHS_MEASURED:]
    runner = cuda_runner(model, cache, group, config.scheduler, longest, device, sizes=largest)
    used: list[int] = []
    runner.prepare(lambda done, of: used.append(device.used_bytes()))
    return used[-1] + (len(sizes) - len(used)) * (used[-1] - used[0])


@torch.inference_mode()
def _largest_step(model: Model, config: Config) -> None:
    """Run a step of max_num_batched_tokens tokens, with as many logits as it may have; the results are discarded."""
    cache, batch = _largest_batch(model, config)
    hidden = model.forward(batch, cache)
    if model.geometry.head != "tokens":
        return
    logits = model.logits(hidden[-_most_logits(config, model.device) :])
    logits.clone()  # the sampler keeps a copy before penalties, for log-probabilities


def _largest_batch(model: Model, config: Config) -> tuple[KVCache, InputBatch]:
    """Prompts of the longest sequence, and a part of one; all write to the same blocks."""
    tokens, longest = config.scheduler.max_num_batched_tokens, max_model_len(config, model.geometry)
    lengths = [longest] * (tokens // longest) + [tokens % longest] * (tokens % longest > 0)
    layout = layout_of(config, model.geometry, model.tp_size, cache_dtype(config, model))
    blocks = -(-lengths[0] // layout.block_size)
    cache = _cache(model, config, blocks)
    num_groups = len(cache.groups.windows)
    positions = torch.arange(tokens, device=model.device) % longest
    table = torch.arange(blocks, dtype=torch.int32, device=model.device)
    batch = InputBatch(
        token_ids=torch.zeros_like(positions),
        positions=positions,
        row_starts=torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=model.device),
        kv_lens=torch.tensor(lengths, dtype=torch.int32, device=model.device),
        longest=lengths[0],
        block_tables=[table.repeat(len(lengths), 1)] * num_groups,
        slots=[positions] * num_groups,
        logit_tokens=torch.arange(tokens, device=model.device)[-1:],
        num_decode_rows=0,
    )
    return cache, batch


def _most_logits(config: Config, device: str) -> int:
    """The rows of logits of the largest step: every row's, and in a step that verifies also those of its drafts."""
    scheduler, speculation = config.scheduler, config.speculation
    num_drafts = speculation.num_drafts if speculation.is_on(device) else 0
    return min(scheduler.max_num_batched_tokens, scheduler.max_num_seqs * (1 + num_drafts))


def _cache(model: Model, config: Config, num_blocks: int) -> KVCache:
    dtype = cache_dtype(config, model)
    layout = layout_of(config, model.geometry, model.tp_size, dtype)
    shape = model.geometry, num_blocks, layout.block_size, model.tp_size, model.device
    return KVCache.allocate(*shape, dtype, layout.groups)
