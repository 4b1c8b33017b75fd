"""The paged KV cache of one rank, and how many blocks of it fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config

from .kernels.packing import allocate

if TYPE_CHECKING:  # the models, which use the cache, import it
    from .models import Model
    from .models.geometry import Geometry

SHARE_OF_FREE_MEMORY = 0.4  # of the host's; the rest is for activations, the other processes and the page cache


class Coding(NamedTuple):
    """A cache of 8 bits an element."""

    dtype: torch.dtype
    models: tuple[torch.dtype, ...]  # whose caches may be so
    needs: str


CODINGS = {  # by kv_cache_dtype
    "int8": Coding(torch.int8, (torch.bfloat16, torch.float16), "the CPU kernels and a bfloat16 or float16 model"),
    "fp8": Coding(
        torch.float8_e4m3fn,
        (torch.bfloat16, torch.float16),
        "the CUDA kernels (sm_80 or later) and a bfloat16 or float16 model",
    ),
}


@dataclass(frozen=True, slots=True, eq=False)
class KVCache:
    """K and V of every layer: one tensor [num_blocks, kv_heads of this rank, block_size, cached_head_dim] each a layer.

    In int8 each head of a token has a scale for its key and one for its value. In fp8 (e4m3) a number is its own code:
    rounded to nearest even, beyond 448 the largest.
    """

    keys: list[Tensor]
    values: list[Tensor]
    block_size: int  # tokens
    scales: Sequence[
        tuple[Tensor, Tensor]
    ] = ()  # int8: of keys and of values, [num_blocks, kv_heads, block_size] float32

    @classmethod
    def allocate(
        cls,
        geometry: "Geometry",
        num_blocks: int,
        block_size: int,
        tp_size: int = 1,
        device: str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> "KVCache":
        """In the model's dtype, e4m3, or int8 with scales; ConfigError when the memory cannot be had.

        Not filled: backends read only slots that were written, and pages that nobody touches cost nothing.
        """
        dtype = dtype or geometry.dtype
        shape = (num_blocks, geometry.kv_heads_of_rank(tp_size), block_size, geometry.cached_head_dim)
        layers = range(geometry.num_layers)
        try:
            keys, values = ([_empty(shape, dtype, device) for _ in layers] for _ in "kv")
            coded = layers if dtype == torch.int8 else ()
            key_scales, value_scales = ([_empty(shape[:3], torch.float32, device) for _ in coded] for _ in "kv")
        except (RuntimeError, MemoryError, OSError, OverflowError) as error:  # torch and mmap
            needed = num_blocks * geometry.kv_bytes_per_block(block_size, tp_size, dtype)
            raise ConfigError(
                f"the KV cache of {num_blocks} blocks needs {needed} bytes, which cannot be allocated; "
                "lower kv_cache_memory_bytes"
            ) from error
        return cls(keys, values, block_size, tuple(zip(key_scales, value_scales, strict=True)))

    def scales_of(self, layer: int) -> tuple[Tensor, Tensor] | None:
        return self.scales[layer] if self.scales else None


def _empty(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """On the CPU in pages of 2 MB: a head's share of a block is a page of 4 KB, so that nearly every access to it would
    first wait for the page's address."""
    return allocate(shape, dtype) if device == "cpu" else torch.empty(shape, dtype=dtype, device=device)


def cache_dtype(config: Config, model: "Model") -> torch.dtype:
    """What the cache holds: the model's dtype, or codes of 8 bits. Raises ConfigError where nothing reads those."""
    name = config.cache.kv_cache_dtype
    if name == "auto":
        return model.dtype
    coding, readable = CODINGS[name], model.attention.coded_cache
    if readable == coding.dtype and model.dtype in coding.models:
        return coding.dtype
    dtype = str(model.dtype).removeprefix("torch.")
    if readable == coding.dtype:
        found, remedy = f"this one is {dtype}", "auto or dtype=bfloat16"
    else:
        found = f"those are not what computes here, on {model.device} in {dtype}"
        remedy = next((other for other, known in CODINGS.items() if known.dtype == readable), "auto")
    raise ConfigError(f"kv_cache_dtype={name} takes {coding.needs}; {found}; use kv_cache_dtype={remedy}")


def max_model_len(config: Config, geometry: "Geometry") -> int:
    """Tokens of prompt and output that one request may have: the model's own limit, cut by the configuration."""
    wanted, own = config.model.max_model_len, geometry.max_position_embeddings
    if wanted is not None and wanted > own:
        raise ConfigError(f"max_model_len={wanted} is more than the model's {own} positions; lower it")
    return wanted or own


def host_budget(free_bytes: int, tp_size: int) -> int:
    """Bytes for one rank's KV cache, when so many are free for all ranks of this machine together."""
    return int(free_bytes * SHARE_OF_FREE_MEMORY) // tp_size


def blocks_that_fit(config: Config, geometry: "Geometry", tp_size: int, budget: int, dtype: torch.dtype) -> int:
    """KV blocks for one rank, which has `budget` bytes for them.

    The configured bytes are obeyed instead; without them there are never more blocks than the largest batch could use.
    Raises ConfigError when one sequence of full length does not fit.
    """
    block_size = config.cache.block_size
    bytes_per_block = geometry.kv_bytes_per_block(block_size, tp_size, dtype)
    length = max_model_len(config, geometry)
    blocks_of_one = -(-length // block_size)
    if config.cache.kv_cache_memory_bytes is not None:
        budget = config.cache.kv_cache_memory_bytes
        num_blocks = budget // bytes_per_block
    else:
        num_blocks = min(budget // bytes_per_block, config.scheduler.max_num_seqs * blocks_of_one)
    if num_blocks < blocks_of_one:
        raise ConfigError(
            f"{budget} bytes a rank hold {num_blocks} KV blocks of {bytes_per_block} bytes, but one sequence of "
            f"{length} tokens needs {blocks_of_one}; raise kv_cache_memory_bytes or lower max_model_len"
        )
    return num_blocks
