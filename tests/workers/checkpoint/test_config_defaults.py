"""Fields that config.json leaves out have the values of transformers' configuration classes."""

import json
from dataclasses import replace

import pytest

from paged_serve.workers.models.registry import read_geometry

from .small_configs import PLAIN

NAMES = (
    *("GraniteSWA", "GraniteMoeSWA", "Ministral", "Cwm", "VaultGemma", "HyperCLOVAX"),
    *("Jais2", "Mellum", "NanoChat", "Youtu", "HYV3", "Lfm3", "Apertus", "Laguna", "MiMoV2Flash", "Mistral4"),
    *("AXK1", "Flint", "Kolibri1", "AriaText", "Persimmon", "ModernBertDecoder", "MiniMax", "DiffLlama", "JetMoe"),
    *("Phi4Multimodal", "Apertus1p5Text", "LaraMini"),
)
SIZES = {name: PLAIN[name] for name in PLAIN if name not in ("architectures", "num_key_value_heads")}
SIZES |= {"num_hidden_layers": 8, "num_attention_heads": 8, "intermediate_size": 96}


@pytest.mark.parametrize("name", NAMES)
def test_fields_that_are_left_out_have_the_values_of_transformers(name, tmp_path):
    import transformers

    config = getattr(transformers, f"{name}Config")(**SIZES, pad_token_id=0)
    stated = json.loads(config.to_json_string(use_diff=False))
    found = []
    for fields in (stated, SIZES):
        own = {"architectures": [f"{name}ForCausalLM"], "vocab_size": 300, "eos_token_id": 2}
        (tmp_path / "config.json").write_text(json.dumps(fields | own))
        read = read_geometry(tmp_path)[1]
        found.append(replace(read, multipliers=replace(read.multipliers, scores=round(read.scale, 12))))
    assert found[0] == found[1]


def test_published_files_of_mimo_v2_have_other_fields_than_transformers(tmp_path):
    import transformers

    published = SIZES | {
        "hybrid_layer_pattern": [0, 1, 1, 0, 1, 1, 1, 0],
        "moe_layer_freq": [0, 0, 1, 1, 1, 1, 1, 1],
        "num_key_value_heads": 2,
        "swa_num_key_value_heads": 4,
        "sliding_window_size": 64,
        "sliding_window": 64,
        "rope_theta": 3e6,
        "swa_rope_theta": 2e4,
        "partial_rotary_factor": 0.25,
        "layernorm_epsilon": 1e-6,
        "routed_scaling_factor": None,
        "attention_value_scale": None,
    }
    parameters = {"rope_type": "default", "partial_rotary_factor": 0.25}
    config = transformers.MiMoV2FlashConfig(
        **SIZES,
        pad_token_id=0,
        num_key_value_heads=2,
        layer_types=[
            "sliding_attention" if slides else "full_attention" for slides in published["hybrid_layer_pattern"]
        ],
        mlp_layer_types=["sparse" if has else "dense" for has in published["moe_layer_freq"]],
        sliding_window=65,
        rms_norm_eps=1e-6,
        attention_value_scale=1.0,
        rope_parameters={
            "full_attention": parameters | {"rope_theta": 3e6},
            "sliding_attention": parameters | {"rope_theta": 2e4},
        },
    )
    found = []
    for fields in (json.loads(config.to_json_string(use_diff=False)), published):
        own = {"architectures": ["MiMoV2FlashForCausalLM"], "vocab_size": 300, "eos_token_id": 2}
        (tmp_path / "config.json").write_text(json.dumps(fields | own))
        found.append(read_geometry(tmp_path)[1])
    assert found[0] == found[1]
