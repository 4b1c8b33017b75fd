"""GLM-5: as DeepSeek-V3.2, with other sizes and indexers that rotate adjacent elements. Layers may share a choice."""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from .deepseek import COUNTS
from .deepseek_v32 import DEEPSEEK_V32, index_sizes
from .expert_layers import dense_layers
from .family import MAX_LAYERS, need, renamed
from .latent_sizes import sized

LATENT = (2048, 512, 192, 64, 256)  # the defaults of `sized`
INDEX_SIZES = {"index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32}
OWN, SHARED = "full", "shared"  # of indexer_types
LETTERS = {"F": OWN, "S": SHARED}  # of index_topk_pattern


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("GLM-5", fields, attention_bias=False, mlp_bias=False, moe_layer_freq=1, scoring_func="sigmoid")
    need("GLM-5", fields, topk_method="noaux_tc", rope_interleave=True, indexer_rope_interleave=True, index_kpool=None)
    counts = {"num_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048}
    more = {"first_k_dense_replace": 3, "routed_scaling_factor": 2.5, "rms_norm_eps": 1e-5}
    found = renamed(fields, COUNTS, norm_topk_prob=True, **counts, **more) | dense_layers(fields)
    sources = {"index_interleave": True, "index_sources": index_sources(fields)}
    return sized(found, fields, *LATENT) | index_sizes(fields, INDEX_SIZES) | sources


def index_sources(fields: dict[str, Any]) -> list[int] | None:
    """Per layer the one whose choice it takes: its own, or that of the last layer before it that has an indexer."""
    if (kinds := _indexer_types(fields)) is None:
        return None
    if set(map(str, kinds)) - {OWN, SHARED} or kinds[:1] == [SHARED]:
        raise ConfigError(
            f"config.json: the indexers of layers are {kinds!r}: each must be full or shared, the first full"
        )
    sources = list[int]()
    for layer, kind in enumerate(kinds):
        sources.append(layer if kind == OWN else sources[-1])
    return sources


def _indexer_types(fields: dict[str, Any]) -> list[Any] | None:
    """The kind of each layer, which may be given in three ways; None: the number of layers is not one."""
    types, pattern, layers = (fields.get(name) for name in ("indexer_types", "index_topk_pattern", "num_hidden_layers"))
    if (given := types if types is not None else pattern) is not None:
        if not isinstance(given, list | str) or len(given) > MAX_LAYERS:
            raise ConfigError(
                f"config.json: indexer_types or index_topk_pattern={given!r} must name a kind for each layer"
            )
        return [LETTERS.get(kind, kind) for kind in given] if isinstance(given, str) else given
    step, first = fields.get("index_topk_freq"), fields.get("index_skip_topk_offset")
    step, first = 1 if step is None else step, 2 if first is None else first
    for name, value in (("index_topk_freq", step), ("index_skip_topk_offset", first)):
        if type(value) is not int or abs(value) > MAX_LAYERS:
            raise ConfigError(f"config.json: {name}={value!r} must be a whole number of layers")
    if type(layers) is not int:
        return None  # refused under its own name
    here = range(min(layers, MAX_LAYERS))
    return [SHARED if max(layer - first + 1, 0) % max(step, 1) else OWN for layer in here]


GLM_MOE_DSA = replace(
    DEEPSEEK_V32,
    name="glm_moe_dsa",
    architectures=("GlmMoeDsaForCausalLM",),
    config=config,
)
