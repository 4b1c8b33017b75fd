"""The paged KV cache of one rank, and how many blocks of it fit."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paged_serve.protocol.config import Config
from paged_serve.protocol.errors import ConfigError

from .kernels.packing import allocate

if TYPE_CHECKING:  # the models, which use the cache, import it
    from .models.geometry import Geometry

SHARE_OF_FREE_MEMORY = 0.4  # the rest is for activations, the other processes and the page cache


@dataclass(frozen=True, slots=True, eq=False)
class KVCache:
    """K and V of every layer: one tensor [num_blocks, kv_heads_of_this_rank, block_size, head_dim] each per layer."""

    keys: list[Tensor]
    values: list[Tensor]
    block_size: int  # tokens

    @classmethod
    def allocate(
        cls, geometry: "Geometry", num_blocks: int, block_size: int, tp_size: int = 1, device: str = "cpu"
    ) -> "KVCache":
        """In the model's dtype; ConfigError when the memory cannot be had.

        Not filled: backends read only slots that were written, and pages that nobody touches cost nothing.
        """
        shape = (num_blocks, geometry.kv_heads_of_rank(tp_size), block_size, geometry.head_dim)
        try:
            keys, values = ([_empty(shape, geometry.dtype, device) for _ in range(geometry.num_layers)] for _ in "kv")
        except (RuntimeError, MemoryError, OSError, OverflowError) as error:  # torch and mmap
            needed = num_blocks * geometry.kv_bytes_per_block(block_size, tp_size)
            raise ConfigError(
                f"the KV cache of {num_blocks} blocks needs {needed} bytes, which cannot be allocated; "
                "lower kv_cache_memory_bytes"
            ) from error
        return cls(keys, values, block_size)


def _empty(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """On the CPU in pages of 2 MB: a head's share of a block is a page of 4 KB, so that nearly every access to it would
    first wait for the page's address."""
    return allocate(shape, dtype) if device == "cpu" else torch.empty(shape, dtype=dtype, device=device)


def max_model_len(config: Config, geometry: "Geometry") -> int:
    """Tokens of prompt and output that one request may have: the model's own limit, cut by the configuration."""
    wanted, own = config.model.max_model_len, geometry.max_position_embeddings
    if wanted is not None and wanted > own:
        raise ConfigError(f"max_model_len={wanted} is more than the model's {own} positions; lower it")
    return wanted or own


def blocks_that_fit(config: Config, geometry: "Geometry", tp_size: int, free_bytes: int) -> int:
    """KV blocks for one rank, when `free_bytes` of memory are free for all ranks of this machine together.

    The configured bytes are obeyed; without them it is a share of the free memory, and never more than the largest
    batch could use. Raises ConfigError when one sequence of full length does not fit.
    """
    block_size = config.cache.block_size
    bytes_per_block = geometry.kv_bytes_per_block(block_size, tp_size)
    length = max_model_len(config, geometry)
    blocks_of_one = -(-length // block_size)
    if config.cache.kv_cache_memory_bytes is not None:
        budget = config.cache.kv_cache_memory_bytes
        num_blocks = budget // bytes_per_block
    else:
        budget = int(free_bytes * SHARE_OF_FREE_MEMORY) // tp_size
        num_blocks = min(budget // bytes_per_block, config.scheduler.max_num_seqs * blocks_of_one)
    if num_blocks < blocks_of_one:
        raise ConfigError(
            f"{budget} bytes a rank hold {num_blocks} KV blocks of {bytes_per_block} bytes, but one sequence of "
            f"{length} tokens needs {blocks_of_one}; raise kv_cache_memory_bytes or lower max_model_len"
        )
    return num_blocks
