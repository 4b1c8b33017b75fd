"""How much of a CUDA device's memory is left for the KV cache: measured, because libraries keep what nobody counts."""

from typing import TYPE_CHECKING

import torch

from paged_serve.protocol.config import Config
from paged_serve.protocol.errors import ConfigError

from .input_batch import InputBatch
from .kv_cache import KVCache, cache_dtype

if TYPE_CHECKING:
    from .models import Model

GRAPHS_BYTES = 512 << 20  # captured decode steps, and kernels that are loaded later


def cuda_budget(config: Config, model: "Model") -> int:
    """Bytes for this rank's KV cache, after the largest step was taken once. Raises ConfigError when none are left."""
    torch.cuda.reset_peak_memory_stats()
    _largest_step(model, config)
    torch.cuda.synchronize()
    for_a_step = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return kv_budget(config.cache.gpu_memory_utilization, total, total - free + for_a_step)


def kv_budget(share: float, total: int, taken: int) -> int:
    """Of a device of `total` bytes we may have `share`; `taken` are in use by anybody, or will be during a step."""
    budget = int(total * share) - taken - GRAPHS_BYTES
    if budget <= 0:
        needed = (int(total * share) - budget) / total
        raise ConfigError(
            f"gpu_memory_utilization={share:g} of {total} bytes leaves nothing for the KV cache: {taken} bytes are "
            f"taken by weights, a full step and others, and {GRAPHS_BYTES} are kept for graphs; "
            + (
                f"raise gpu_memory_utilization above {needed:.2f}, or lower max_num_batched_tokens"
                if needed < 1
                else "use tensor_parallel_size, a smaller model or max_num_batched_tokens, or free the device"
            )
        )
    return budget


@torch.inference_mode()
def _largest_step(model: "Model", config: Config) -> None:
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
    model.logits(hidden[-config.scheduler.max_num_seqs :])
