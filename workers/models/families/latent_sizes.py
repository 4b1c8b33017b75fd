"""The sizes and the scale of latent attention, which several families name alike in config.json."""

import math
from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.layer_options import Indexer, Latent
from .rope_config import rope_of

MAX_CACHED = 1024  # elements of a vector in the cache: what attention kernels are written for
SIZES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def sized(found: dict[str, Any], fields: dict[str, Any], query_rank: int | None, *defaults: int) -> dict[str, Any]:
    """`found` with the sizes of latent attention; `defaults` are those of SIZES.

    `fields` are config.json's: q_lora_rank is `query_rank` if it is absent, and null if queries are projected directly.
    """
    found = dict(zip(SIZES, defaults, strict=True)) | found
    rotated, rank = found["qk_rope_head_dim"], fields.get("q_lora_rank", query_rank)
    head_dim = rotated if isinstance(rotated, int) else None  # another type is refused under its own name
    return found | {"q_lora_rank": rank, "head_dim": head_dim, "num_key_value_heads": 1}


def latent(config: HFConfig) -> Latent:
    """Raises ConfigError naming a size that is out of range."""
    for name in SIZES:
        if (value := getattr(config, name)) < 1:
            raise ConfigError(f"config.json: {name}={value} must be at least 1")
    if config.q_lora_rank is not None and config.q_lora_rank < 1:
        raise ConfigError(f"config.json: q_lora_rank={config.q_lora_rank} must be at least 1, or null")
    sizes = Latent(config.q_lora_rank or 0, *(getattr(config, name) for name in SIZES))
    if sizes.rope_dim % 2:
        raise ConfigError(f"config.json: qk_rope_head_dim={sizes.rope_dim} must be even, to be rotated in pairs")
    if sizes.cached_dim > MAX_CACHED:
        raise ConfigError(
            f"config.json: kv_lora_rank={sizes.kv_rank} and qk_rope_head_dim={sizes.rope_dim} must be at most "
            f"{MAX_CACHED} together"
        )
    return sizes


def latent_with_indexer(config: HFConfig) -> Latent:
    """As `latent`, of sparse attention."""
    sizes = latent(config)
    for name in ("index_topk", "index_n_heads", "index_head_dim"):
        if (value := getattr(config, name)) < 1:
            raise ConfigError(f"config.json: {name}={value} must be at least 1")
    if not sizes.query_rank:
        raise ConfigError("config.json: index_topk needs a q_lora_rank, from which an indexer projects its queries")
    heads, dim = config.index_n_heads, config.index_head_dim
    if dim < sizes.rope_dim:
        raise ConfigError(
            f"config.json: index_head_dim={dim} must be at least qk_rope_head_dim={sizes.rope_dim}, its rotated part"
        )
    indexer = Indexer(heads, dim, config.index_topk, config.index_interleave, tuple(config.index_sources or ()))
    found = replace(sizes, indexer=indexer)
    if found.row_dim > MAX_CACHED:
        raise ConfigError(
            f"config.json: kv_lora_rank={sizes.kv_rank}, qk_rope_head_dim={sizes.rope_dim} and index_head_dim={dim} "
            f"must be at most {MAX_CACHED} together, each part rounded up to a multiple of 16"
        )
    return found


def scale_of_scores(config: HFConfig) -> float:
    """With mscale_all_dim it is multiplied by the square of a factor that grows with the context."""
    rope, scale = rope_of(config), 1.0 / math.sqrt(config.qk_nope_head_dim + config.qk_rope_head_dim)
    if rope.kind != "default" and rope.mscale_all_dim and rope.factor > 1:
        scale *= (0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1.0) ** 2
    return scale
