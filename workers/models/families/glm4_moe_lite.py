"""GLM-4.7-Flash: as DeepSeek-V3, with other sizes; each layer may be named dense or sparse."""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from .deepseek import COUNTS, DEEPSEEK_V3
from .family import need, renamed
from .latent_sizes import sized

LATENT = (768, 512, 192, 64, 256)  # the defaults of `sized`


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("GLM-4.7-Flash", fields, attention_bias=False, scoring_func="sigmoid", topk_method="noaux_tc")
    need("GLM-4.7-Flash", fields, partial_rotary_factor=1.0)
    counts = {"num_experts": 64, "num_experts_per_tok": 4, "n_shared_experts": 1, "moe_intermediate_size": 1536}
    more = {"first_k_dense_replace": 1, "routed_scaling_factor": 1.8, "rms_norm_eps": 1e-5}
    found = renamed(fields, COUNTS, norm_topk_prob=True, **counts, **more)
    return sized(found | _dense_layers(fields.get("mlp_layer_types")), fields, *LATENT)


def _dense_layers(kinds: Any) -> dict[str, Any]:
    """The layers that `mlp_layer_types` names dense; without it the first ones are."""
    if kinds is None:
        return {}
    if not isinstance(kinds, list) or not set(map(str, kinds)) <= {"dense", "sparse"}:
        raise ConfigError(f"config.json: mlp_layer_types={kinds!r} must be a list of dense and sparse")
    return {"first_k_dense_replace": 0, "mlp_only_layers": [at for at, kind in enumerate(kinds) if kind == "dense"]}


GLM4_MOE_LITE = replace(DEEPSEEK_V3, name="glm4_moe_lite", architectures=("Glm4MoeLiteForCausalLM",), config=config)
