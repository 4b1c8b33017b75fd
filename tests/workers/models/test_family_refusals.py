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
    ],
)
def test_a_field_that_would_change_results_is_refused_by_name(architecture, fields, message):
    family, _ = family_of([architecture], FAMILIES)
    with pytest.raises(ConfigError, match=message):
        family.config(fields)
