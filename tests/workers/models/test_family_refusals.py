"""Fields of config.json with which a model would compute something else are refused by name."""

import pytest

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.models.catalogue import FAMILIES
from paged_serve.workers.models.registry import family_of


@pytest.mark.parametrize(
    ("architecture", "fields", "message"),
    [
        ("MiniMaxM2ForCausalLM", {"attn_type_list": [1, 0]}, r"attn_type_list=.* is not supported for MiniMax-M2"),
        ("MiniMaxM2ForCausalLM", {"use_qk_norm": False}, "use_qk_norm=False is not supported for MiniMax-M2"),
        ("MiniMaxM2ForCausalLM", {"shared_intermediate_size": 8}, "shared_intermediate_size=8 is not supported"),
        ("MiniMaxM2ForCausalLM", {"layernorm_mlp_beta": 2.0}, "layernorm_mlp_beta=2.0 is not supported"),
        ("Ernie4_5_MoeForCausalLM", {"use_bias": True}, "use_bias=True is not supported for ERNIE 4.5 MoE"),
        ("Ernie4_5_MoeForCausalLM", {"moe_use_aux_free": False}, "moe_use_aux_free=False is not supported"),
        ("Ernie4_5_MoeForCausalLM", {"moe_layer_end_index": [1, 2]}, "moe_layer_end_index=.* must be numbers"),
        ("HunYuanDenseV1ForCausalLM", {"use_cla": True}, "use_cla=True is not supported for HunYuan"),
        ("HunYuanMoEV1ForCausalLM", {"moe_topk": [8, 4]}, "moe_topk=.* all layers must have one value"),
        (
            "HunYuanMoEV1ForCausalLM",
            {"intermediate_size": 8, "moe_intermediate_size": [4]},
            "moe_intermediate_size=4 is not supported for HunYuan MoE; only 8 is",
        ),
        ("Dots1ForCausalLM", {"scoring_func": "softmax"}, "scoring_func=softmax is not supported for dots.llm1"),
        ("ExaoneMoeForCausalLM", {"mlp_layer_types": ["moe"]}, "must be a list of dense and sparse"),
        ("SolarOpenForCausalLM", {"use_qk_norm": True}, "use_qk_norm=True is not supported for Solar Open"),
        ("AfmoeForCausalLM", {"num_expert_groups": 2}, "num_expert_groups=2 is not supported for AFMoE"),
        ("AfmoeForCausalLM", {"score_func": "softmax"}, "score_func=softmax is not supported for AFMoE"),
    ],
)
def test_a_field_that_would_change_results_is_refused_by_name(architecture, fields, message):
    family, _ = family_of([architecture], FAMILIES)
    with pytest.raises(ConfigError, match=message):
        family.config(fields)
