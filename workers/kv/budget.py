"""How the KV cache is held, and how many blocks of it fit."""

from typing import NamedTuple, Protocol

import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config

from ..checkpoint.geometry import Geometry

SHARE_OF_FREE_MEMORY = 0.4  # of the host's; the rest is for activations, the other processes and the page cache


class Coding(NamedTuple):
    """A cache of 8 bits an element."""

    dtype: torch.dtype
    models: tuple[torch.dtype, ...]  # dtypes of models whose caches may be coded so
    needs: str


CODINGS = {  # by kv_cache_dtype
    "int8": Coding(torch.int8, (torch.bfloat16, torch.float16), "the CPU kernels and a bfloat16 or float16 model"),
    "fp8": Coding(
        torch.float8_e4m3fn,
        (torch.bfloat16, torch.float16),
        "the CUDA kernels (sm_80 or later) and a bfloat16 or float16 model",
    ),
}


class CacheReader(Protocol):
    @property
    def coded_cache(self) -> torch.dtype | None: ...


class CachedModel(Protocol):
    """What decides how a model's keys and values are held."""

    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> str: ...
    @property
    def attention(self) -> CacheReader: ...


def cache_dtype(config: Config, model: CachedModel) -> torch.dtype:
    """What the cache holds: the model's dtype, or codes of 8 bits. Raises ConfigError where nothing reads those."""
    name = config.cache.kv_cache_dtype
    if name == "auto":
        return model.dtype
    coding, readable = CODINGS[name], model.attention.coded_cache
    if readable == coding.dtype and model.dtype in coding.models:
        return coding.dtype
    dtype = str(model.dtype).removeprefix("torch.")
    if readable == coding.dtype:
        found, remedy = f"this model is {dtype}", "auto or dtype=bfloat16"
    else:
        found = f"this server computes on {model.device} in {dtype}"
        remedy = next((other for other, known in CODINGS.items() if known.dtype == readable), "auto")
    raise ConfigError(f"kv_cache_dtype={name} needs {coding.needs}; {found}; use kv_cache_dtype={remedy}")


def max_model_len(config: Config, geometry: Geometry) -> int:
    """Tokens of prompt and output that one request may have: the model's own limit, cut by the configuration."""
    wanted, own = config.model.max_model_len, geometry.max_position_embeddings
    if wanted is not None and wanted > own:
        raise ConfigError(f"max_model_len={wanted} is more than the model's {own} positions; lower it")
    return wanted or min(own, geometry.usual_max_len or own)


def host_budget(free_bytes: int, tp_size: int) -> int:
    """Bytes for one rank's KV cache, when so many are free for all ranks of this machine together."""
    return int(free_bytes * SHARE_OF_FREE_MEMORY) // tp_size


def blocks_that_fit(config: Config, geometry: Geometry, tp_size: int, budget: int, dtype: torch.dtype) -> int:
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
