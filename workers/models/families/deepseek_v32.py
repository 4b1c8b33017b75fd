"""DeepSeek-V3.2: as DeepSeek-V3, with sparse attention: each layer has an indexer, which chooses tokens."""

from dataclasses import replace
from typing import Any

from .deepseek import DEEPSEEK_V3, config_v3
from .expert_layers import dense_layers
from .family import FULL, need
from .latent_sizes import latent_with_indexer

INDEXED = "indexed_attention"  # of layer_types
LAYER_TYPES = (FULL, INDEXED)  # which are the same here: all layers have an indexer
INDEX_SIZES = {"index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64}  # defaults
OWN_INDEXERS = {"index_interleave": False, "index_sources": None}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("DeepSeek-V3.2", fields, mlp_bias=False, rope_interleave=True, indexer_rope_interleave=False)
    others = {name: value for name, value in fields.items() if name != "index_topk"}  # which DeepSeek-V3 refuses
    return config_v3(others | dense_layers(fields)) | index_sizes(fields, INDEX_SIZES) | OWN_INDEXERS


def index_sizes(fields: dict[str, Any], defaults: dict[str, int]) -> dict[str, Any]:
    """The sizes of an indexer; a null field counts as absent."""
    return {name: default if fields.get(name) is None else fields[name] for name, default in defaults.items()}


DEEPSEEK_V32 = replace(
    DEEPSEEK_V3,
    name="deepseek_v32",
    architectures=("DeepseekV32ForCausalLM",),
    config=config,
    latent=latent_with_indexer,
    layer_types=LAYER_TYPES,
)
