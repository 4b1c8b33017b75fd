"""How much of a CUDA device's memory is left for the KV cache: measured, because libraries keep some uncounted."""

import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config

from ..backends.cuda.backend import CudaBackend
from ..batch.input_batch import InputBatch
from ..distributed.tensor_parallel import TensorParallelGroup
from ..kv.budget import cache_dtype, max_model_len
from ..kv.kv_cache import KVCache
from ..layers.model import Model
from .cuda_device import CudaDevice
from .cuda_graphs import ladder
from .cuda_steps import cuda_runner

GRAPHS_TRIED = 2  # the largest: the first takes their common memory and its own, the second its own alone


def cuda_budget(config: Config, model: Model, group: TensorParallelGroup, device: CudaDevice) -> int:
    """Bytes for this rank's KV cache, after the largest step was taken once. Raises ConfigError when none are left.

    Ranks exchange sums in that step and in those of graphs, so all ranks must ask at the same point of their work.
    """
    for_a_step = device.peak_bytes(lambda: _largest_step(model, config))
    has_graphs = isinstance(model.backend, CudaBackend) and model.geometry.head == "tokens"
    used = _used_with_graphs(config, model, group, device) if has_graphs else None
    taken = (device.used_bytes() if used is None else used) + for_a_step
    return kv_budget(config.cache.gpu_memory_utilization, device.total_bytes(), taken)


def kv_budget(share: float, total: int, taken: int) -> int:
    """Of a device of `total` bytes we may have `share`; `taken` are in use, or will be during a step."""
    budget = int(total * share) - taken
    if budget <= 0:
        needed = (int(total * share) - budget) / total
        raise ConfigError(
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
    """Bytes in use once a runner is there with the graphs of all sizes, but for its KV cache.

    The largest are captured for trial over a cache of one block, of which padding reads and writes nothing. Graphs that
    come after the first take what the second took: they have as many nodes or fewer, and share memory with it.
    """
    cache = KVCache.allocate(
        model.geometry, 1, config.cache.block_size, model.tp_size, model.device, cache_dtype(config, model)
    )
    sizes = ladder(config.scheduler.max_num_seqs)
    longest = max_model_len(config, model.geometry)
    runner = cuda_runner(model, cache, group, config.scheduler, longest, device, sizes[-GRAPHS_TRIED:])
    used: list[int] = []
    runner.prepare(lambda done, of: used.append(device.used_bytes()))
    return used[-1] + (len(sizes) - len(used)) * (used[-1] - used[0])


@torch.inference_mode()
def _largest_step(model: Model, config: Config) -> None:
    """A chunk of all tokens that a step may have, sampled at as many rows as there may be; its results mean nothing."""
    tokens = min(config.scheduler.max_num_batched_tokens, model.geometry.max_position_embeddings)
    block_size = config.cache.block_size
    blocks = -(-tokens // block_size)
    cache = KVCache.allocate(
        model.geometry, blocks, block_size, model.tp_size, model.device, cache_dtype(config, model)
    )
    each = torch.arange(tokens, device=model.device)
    batch = InputBatch(
        token_ids=torch.zeros_like(each),
        positions=each,
        row_starts=torch.tensor([0, tokens], dtype=torch.int32, device=model.device),
        kv_lens=torch.tensor([tokens], dtype=torch.int32, device=model.device),
        longest=tokens,
        block_tables=torch.arange(blocks, dtype=torch.int32, device=model.device).unsqueeze(0),
        slots=each,
        logit_tokens=each[-1:],
        num_decode_rows=0,
    )
    hidden = model.forward(batch, cache)
    if model.geometry.head != "tokens":
        return
    logits = model.logits(hidden[-config.scheduler.max_num_seqs :])
    logits.clone()  # the sampler keeps them beside those that it penalises, for log-probabilities
