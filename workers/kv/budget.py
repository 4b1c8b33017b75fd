"""The dtype of the KV cache, and the number of blocks that fit."""

from typing import NamedTuple, Protocol

import torch

from paged_serve.protocol.errors import ConfigError, MemoryShortage
from paged_serve.protocol.messages.config import Config

from ..geometry.geometry import Geometry
from .cache_layout import CacheLayout

KEYS_MULTIPLE = 128  # tables of pairs of tokens have whole tiles of keys
ROWS_BESIDE_STREAMS = 11  # float32: results of products, norms and sums
SHARE_OF_FREE_MEMORY = 0.4  # of the host's; the rest is for activations, the other processes and the page cache


class Coding(NamedTuple):
    """A KV cache dtype with 8 bits per element."""

    dtype: torch.dtype
    models: tuple[torch.dtype, ...]  # the dtypes of models that may use it
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
    """The properties of a model that determine the dtype of its KV cache."""

    @property
    def device(self) -> str: ...
    @property
    def attention(self) -> CacheReader: ...
    @property
    def geometry(self) -> Geometry: ...


def cache_dtype(config: Config, model: CachedModel) -> torch.dtype:
    """The dtype of the KV cache: the model's, or one with 8 bits. Raises ConfigError if no kernel here supports it."""
    return dtype_of_cache(config, model.geometry, model.device, model.attention.coded_cache)


def dtype_of_cache(config: Config, geometry: Geometry, device: str, readable: torch.dtype | None) -> torch.dtype:
    """The same without a loaded model; `readable` is the `coded_cache` of its AttentionBackend."""
    name = config.cache.kv_cache_dtype
    if name == "auto":
        return geometry.dtype
    if geometry.latent:
        raise ConfigError(f"kv_cache_dtype={name} is not supported for latent attention; use kv_cache_dtype=auto")
    if not geometry.has_one_head_size:
        raise ConfigError(f"kv_cache_dtype={name} needs heads of one size in all layers; use kv_cache_dtype=auto")
    coding = CODINGS[name]
    if readable == coding.dtype and geometry.dtype in coding.models:
        return coding.dtype
    dtype = str(geometry.dtype).removeprefix("torch.")
    if readable == coding.dtype:
        found, remedy = f"this model is {dtype}", "auto or dtype=bfloat16"
    else:
        found = f"this server computes on {device} in {dtype}"
        remedy = next((other for other, known in CODINGS.items() if known.dtype == readable), "auto")
    raise ConfigError(f"kv_cache_dtype={name} needs {coding.needs}; {found}; use kv_cache_dtype={remedy}")


def max_model_len(config: Config, geometry: Geometry) -> int:
    """The largest number of tokens of a request, prompt and output: the model's limit, or a lower configured one."""
    wanted, own = config.model.max_model_len, geometry.max_position_embeddings
    if wanted is not None and wanted > own:
        raise ConfigError(f"max_model_len={wanted} is more than the model's {own} positions; lower it")
    return wanted or min(own, geometry.usual_max_len or own)


def layout_of(config: Config, geometry: Geometry, tp_size: int, dtype: torch.dtype) -> CacheLayout:
    """The KV groups of the model's layers, and the blocks of one rank, under this configuration."""
    return CacheLayout.of(geometry, max_model_len(config, geometry), config.cache.block_size, tp_size, dtype)


def expert_rows_bytes(geometry: Geometry, max_num_batched_tokens: int) -> int:
    """Bytes of one rank's row buffers for experts in the largest step; layers use them in turn.

    A rank may have to compute every expert of every token. Buffers grow to powers of two rows.
    """
    return max(
        (
            experts.bytes_per_place(geometry.hidden_size, geometry.dtype.itemsize)
            * (1 << (max_num_batched_tokens * experts.top_k - 1).bit_length())
            for experts in filter(None, (*geometry.experts, geometry.attention_experts))
        ),
        default=0,
    )


def disentangled_bytes(geometry: Geometry, max_num_batched_tokens: int, tp_size: int) -> int:
    """Bytes of one rank's tables for disentangled attention in the largest step; layers use them in turn.

    Each token has the products of its query and of its key with all buckets, float32, and copies while they are made;
    and what its scores gain from each key of a text, twice while it is chosen, in whole tiles.
    """
    if (distances := geometry.disentangled) is None:
        return 0
    longest = min(max_num_batched_tokens, geometry.max_position_embeddings)
    of_head = 4 * (2 * (longest + KEYS_MULTIPLE) + 3 * 2 * distances.num_buckets)
    return max_num_batched_tokens * geometry.heads_of_rank(tp_size) * of_head


def streams_bytes(geometry: Geometry, max_num_batched_tokens: int) -> int:
    """Bytes of one rank's residual streams in the largest step, of their predictions, and of the other float32 rows
    between them; layers use them in turn. Buffers grow to powers of two tokens."""
    if geometry.altup is None:
        return 0
    rows = 2 * geometry.altup.num_streams + 1 + ROWS_BESIDE_STREAMS
    of_token = rows * geometry.hidden_size * torch.float32.itemsize
    return of_token * (1 << (max_num_batched_tokens - 1).bit_length())


def draft_inputs_bytes(config: Config, device: str, geometry: Geometry, tp_size: int) -> int:
    """Bytes of one rank's copies of what recurrent layers read at drafts, in the step with the most drafts.

    Copies grow to powers of two tokens.
    """
    if not config.speculation.is_on(device):
        return 0
    of_rows = config.scheduler.max_num_seqs * (1 + config.speculation.num_drafts)
    tokens = min(config.scheduler.max_num_batched_tokens, of_rows)
    return geometry.draft_bytes(tp_size) * (1 << (tokens - 1).bit_length())


def host_budget(free_bytes: int, tp_size: int, reserved_bytes: int = 0) -> int:
    """Bytes for one rank's KV cache; `free_bytes` are shared by all ranks of this machine, each reserves some first.

    Raises MemoryShortage if what is reserved does not fit.
    """
    free = free_bytes // tp_size - reserved_bytes
    if reserved_bytes and free <= 0:
        raise MemoryShortage(
            f"the experts' rows and the drafts of a step take {reserved_bytes} bytes per rank, but "
            f"{free_bytes // tp_size} are free; "
            "lower max_num_batched_tokens"
        )
    return int(free * SHARE_OF_FREE_MEMORY)


def blocks_that_fit(config: Config, geometry: Geometry, tp_size: int, budget: int, dtype: torch.dtype) -> int:
    """The number of KV blocks of one rank that has `budget` bytes for them.

    kv_cache_memory_bytes, if configured, replaces `budget`. Otherwise there are at most as many blocks as the largest
    batch can use. When one sequence of full length does not fit, raises MemoryShortage if `budget` was used, otherwise
    ConfigError.
    """
    layout, length = layout_of(config, geometry, tp_size, dtype), max_model_len(config, geometry)
    groups, bytes_per_block = layout.groups, layout.bytes_per_block
    blocks_of_one = groups.blocks_of_sequence(length, layout.block_size, config.scheduler.max_num_batched_tokens)
    if config.cache.kv_cache_memory_bytes is not None:
        budget = config.cache.kv_cache_memory_bytes
        num_blocks = budget // bytes_per_block
    else:
        num_blocks = min(budget // bytes_per_block, config.scheduler.max_num_seqs * blocks_of_one)
    if num_blocks < blocks_of_one:
        kind = MemoryShortage if config.cache.kv_cache_memory_bytes is None else ConfigError
        raise kind(
            f"{budget} bytes per rank hold {num_blocks} KV blocks of {bytes_per_block} bytes, but one sequence of "
            f"{length} tokens needs {blocks_of_one}; raise kv_cache_memory_bytes or lower max_model_len"
            + (" or max_num_batched_tokens" if any(not kind.is_full for kind in groups.kinds) else "")
        )
    return num_blocks
