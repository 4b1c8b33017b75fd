"""Fields of config.json with which a model would compute something else are refused by name."""

import json

import pytest

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.models.catalogue import FAMILIES
from paged_serve.workers.models.registry import family_of, read_geometry


@pytest.mark.parametrize(
    ("architecture", "fields", "message"),
    [
        ("MiniMaxM2ForCausalLM", {"attn_type_list": [1, 0]}, r"attn_type_list=.* is not supported for MiniMax-M2"),
        ("MiniMaxM2ForCausalLM", {"use_qk_norm": False}, "use_qk_norm=False is not supported for MiniMax-M2"),
        ("MiniMaxM2ForCausalLM", {"shared_intermediate_size": 8}, "shared_intermediate_size=8 is not supported"),
        ("MiniMaxM2ForCausalLM", {"layernorm_mlp_beta": 2.0}, "layernorm_mlp_beta=2.0 is not supported"),
        ("Ernie4_5_MoeForCausalLM", {"use_bias": True}, "use_bias=True is not supported for ERNIE 4.5 MoE"),
        ("Ernie4_5_MoeForCausalLM", {"moe_gate_act": "sigmoid"}, "moe_gate_act=sigmoid is not supported"),
        ("BambaForCausalLM", {"partial_rotary_factor": 1.0}, "partial_rotary_factor=1.0 is not supported for Bamba"),
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
        ("ExaoneMoeForCausalLM", {"swiglu_limits": [7.0]}, "swiglu_limits=.* is not supported for K-EXAONE"),
        ("ExaoneMoEForCausalLM", {"sliding_windows": [128]}, "sliding_windows=.* is not supported for K-EXAONE"),
        ("ExaoneMoEForCausalLM", {"is_moe_layer": [1]}, "is_moe_layer=.* must be a list of true and false"),
        ("Qwen3NextForCausalLM", {"output_gate_type": "sigmoid"}, "output_gate_type=sigmoid is not supported"),
        ("Qwen3_5ForCausalLM", {"layer_scale": True}, "layer_scale=True is not supported for Qwen3.5"),
        ("GraniteForCausalLM", {"layer_rope_theta": [1e4, 0]}, "layer_rope_theta=.* is not supported for Granite"),
        ("GraniteMoeForCausalLM", {"attention_sinks": True}, "attention_sinks=True is not supported for Granite"),
        ("DeepseekV3ForCausalLM", {"index_topk": 2048}, "index_topk=2048 is not supported for DeepSeek-V3"),
        ("MiniCPMForCausalLM", {"mixer_types": ["lightning"]}, "mixer_types=.* is not supported for MiniCPM"),
        ("MistralForCausalLM", {"rope_parameters": {"llama_4_scaling_beta": 0.1}}, "llama_4_scaling_beta=0.1 is not"),
        ("NemotronHForCausalLM", {"block_configs": [{}]}, "block_configs=.* is not supported for Nemotron-H"),
        ("SolarOpenForCausalLM", {"use_qk_norm": True}, "use_qk_norm=True is not supported for Solar Open"),
        ("AfmoeForCausalLM", {"num_expert_groups": 2}, "num_expert_groups=2 is not supported for AFMoE"),
        ("Zamba2ForCausalLM", {"use_long_context": True}, "use_long_context=True is not supported for Zamba2"),
        ("Zamba2ForCausalLM", {"tie_word_embeddings": False}, "tie_word_embeddings=False is not supported for Zamba2"),
        ("Zamba2ForCausalLM", {"layers_block_type": ["mamba"]}, "must be a list of mamba and hybrid, which has both"),
        ("OuroForCausalLM", {"early_exit_threshold": 0.5}, "early_exit_threshold=0.5 is not supported for Ouro"),
        ("OuroForCausalLM", {"num_hidden_layers": 2, "total_ut_steps": 0}, "total_ut_steps=0 must be at least 1"),
        ("QWenLMHeadModel", {"no_bias": False}, "no_bias=False is not supported for Qwen 1"),
        ("ChatGLMModel", {"vision_config": {}}, "vision_config={} is not supported for ChatGLM"),
        ("AfmoeForCausalLM", {"score_func": "softmax"}, "score_func=softmax is not supported for AFMoE"),
    ],
)
def test_a_field_that_would_change_results_is_refused_by_name(architecture, fields, message):
    family, _ = family_of([architecture], FAMILIES)
    with pytest.raises(ConfigError, match=message):
        family.config(fields)


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 199,
    "max_position_embeddings": 512,
}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"is_causal": False}, "is_causal=False is not supported for llama"),
        (
            {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 128},
            "layer_types has 'sliding_attention' with sliding_window=128, but the layers of llama have no windows",
        ),
        ({"rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}}, "alpha=1000.0 among the rope param"),
    ],
)
def test_a_mask_or_a_rotation_that_the_family_does_not_have_is_refused_by_name(fields, message, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    read_geometry(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | fields))
    with pytest.raises(ConfigError, match=message):
        read_geometry(tmp_path)
