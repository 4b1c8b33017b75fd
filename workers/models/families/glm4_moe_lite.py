"""GLM-4.7-Flash: as DeepSeek-V3, with other sizes; each layer may be named dense or sparse."""

from dataclasses import replace
from typing import Any

from .deepseek import COUNTS, DEEPSEEK_V3
from .expert_layers import dense_layers
from .family import need, renamed
from .latent_sizes import sized

LATENT = (768, 512, 192, 64, 256)  # the defaults of `sized`


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("GLM-4.7-Flash", fields, attention_bias=False, scoring_func="sigmoid", topk_method="noaux_tc")
    need("GLM-4.7-Flash", fields, partial_rotary_factor=1.0, index_topk=None)
    counts = {"num_experts": 64, "num_experts_per_tok": 4, "n_shared_experts": 1, "moe_intermediate_size": 1536}
    more = {"first_k_dense_replace": 1, "routed_scaling_factor": 1.8, "rms_norm_eps": 1e-5}
    found = renamed(fields, COUNTS, norm_topk_prob=True, **counts, **more)
    return sized(found | dense_layers(fields), fields, *LATENT)


GLM4_MOE_LITE = replace(DEEPSEEK_V3, name="glm4_moe_lite", architectures=("Glm4MoeLiteForCausalLM",), config=config)
