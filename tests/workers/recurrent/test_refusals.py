"""Sizes of recurrent layers that no kernel supports are refused by name, before any weight is read."""

import json
from dataclasses import replace

import pytest

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.backends.cuda.recurrences import check_recurrent
from paged_serve.workers.geometry.recurrent.short_convolution import ShortConvolution
from paged_serve.workers.kv.cache_layout import CacheLayout
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.models.registry import read_geometry

from ..tiny_models.checkpoints import ours, write_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint("mamba2", folder)
    return folder


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"state_size": 20}, "no kernel supports a Mamba 2 state size of 20; it must be a multiple of 8 up to 512"),
        ({"state_size": 1024}, "no kernel supports a Mamba 2 state size of 1024"),
        ({"conv_kernel": 9}, "no kernel supports a convolution of width 9; it must be 2 to 8"),
        ({"n_groups": 3}, "8 Mamba 2 heads of 16 elements cannot share 3 groups"),
        ({"head_dim": 24}, r"8 Mamba 2 heads of 24 elements are not the 2 \* hidden_size = 128 elements of a layer"),
        ({"time_step_limit": [1.0, 0.5]}, r"time_step_limit=\[1.0, 0.5\] must be two ascending numbers"),
        ({"hidden_act": "gelu"}, "hidden_act=gelu is not supported for Mamba 2; only silu is"),
    ],
    ids=str,
)
def test_a_size_is_refused_by_name(folder, tmp_path, changed, reason):
    fields = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | changed))
    with pytest.raises(ConfigError, match=reason):
        read_geometry(tmp_path)


NEMOTRON_H = {
    "architectures": ["NemotronHForCausalLM"],
    "vocab_size": 199,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "mamba_num_heads": 8,
    "hybrid_override_pattern": "M-*E",
}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            {"hybrid_override_pattern": "M-?"},
            r"hybrid_override_pattern='M-\?' must have a letter of M\*-E for each layer",
        ),
        ({"hybrid_override_pattern": None}, "hybrid_override_pattern=None must have a letter"),
        ({"hybrid_override_pattern": "-E"}, "no layer of the model is linear_attention or full_attention"),
        ({"layers_block_type": ["mamba", 1]}, r"layers_block_type=\['mamba', 1\] must be a list with a name"),
        (
            {"layers_block_type": ["mamba", "conv"]},
            "layer_types has 'conv'; the layers of nemotron_h are linear_attention",
        ),
        ({"num_hidden_layers": 5}, "layer_types names 4 layers, but the model has 5"),
        ({"moe_latent_size": 32}, "moe_latent_size=32 is not supported for Nemotron-H; only null is"),
        ({"moe_shared_expert_intermediate_size": 0}, "moe_shared_expert_intermediate_size=0 must be at least 1"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok=9 must be from 1 to the number of experts, 8"),
        ({"n_groups": 3}, "8 Mamba 2 heads of 64 elements cannot share 3 groups"),
        ({"mamba_head_dim": "auto"}, "mamba_head_dim='auto' must be a number"),
        ({"mlp_bias": True}, "mlp_bias=True is not supported for Nemotron-H; only False is"),
        ({"residual_in_fp32": True}, "residual_in_fp32=True is not supported for Nemotron-H"),
    ],
    ids=str,
)
def test_a_field_of_nemotron_h_is_refused_by_name(tmp_path, changed, reason):
    (tmp_path / "config.json").write_text(json.dumps(NEMOTRON_H))
    _, geometry = read_geometry(tmp_path)
    assert geometry.lone_parts == ("mixer", "feed_forward", "mixer", "feed_forward")
    (tmp_path / "config.json").write_text(json.dumps(NEMOTRON_H | changed))
    with pytest.raises(ConfigError, match=reason):
        read_geometry(tmp_path)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"attn_output_gate": False}, "attn_output_gate=False is not supported for Qwen3.5; only True is"),
        ({"attention_bias": True}, "attention_bias=True is not supported for Qwen3.5; only False is"),
        ({"norm_topk_prob": False}, "norm_topk_prob=False is not supported for Qwen3.5; only True is"),
        ({"mlp_only_layers": [1]}, r"mlp_only_layers=\[1\] is not supported for Qwen3.5; only \[\] is"),
        ({"linear_num_key_heads": 3}, "linear_num_value_heads=8 cannot share linear_num_key_heads=3"),
        ({"layer_types": ["linear_attention", "mamba", "full_attention"]}, "layer_types has 'mamba'; the layers of"),
    ],
    ids=str,
)
def test_a_field_of_qwen_3_5_is_refused_by_name(tmp_path, changed, reason):
    write_checkpoint("qwen3.5-moe", tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | changed))
    with pytest.raises(ConfigError, match=reason):
        read_geometry(tmp_path)


def test_layers_without_a_cache_take_no_blocks(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(NEMOTRON_H | {"hybrid_override_pattern": "-M*EM*-"}))
    _, geometry = read_geometry(tmp_path)
    layout = CacheLayout.of(geometry, 4096, 16)
    assert layout.groups.layers_per_group == 2
    assert layout.groups.tensor_of_layer == (-1, -1, 0, -1, -1, 1, -1)
    assert [place is not None for place in layout.groups.places] == [False, True, False, False, True, False, False]
    cache = KVCache.allocate(geometry, 4, layout.block_size, groups=layout.groups)
    assert [len(keys) for keys in cache.keys] == [0, 0, 13, 0, 0, 13, 0]  # four blocks of four areas, see KVCache
    assert [len(states) for states in cache.states] == [0, 4, 0, 0, 4, 0, 0]


def test_a_model_of_attention_and_feed_forwards_has_no_states(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(NEMOTRON_H | {"hybrid_override_pattern": "-*-*"}))
    _, geometry = read_geometry(tmp_path)
    layout = CacheLayout.of(geometry, 4096, 16)
    assert (layout.groups.tensor_of_layer, layout.groups.places, layout.block_size) == ((-1, 0, -1, 1), (), 16)


@pytest.mark.parametrize("size", [3, 16])
def test_ranks_that_cannot_share_the_heads_are_refused(folder, size):
    _, geometry = read_geometry(folder)
    with pytest.raises(ConfigError, match=r"8 heads of its Mamba 2 layers|8 attention heads"):
        geometry.check_tensor_parallel(size)


def test_infinity_is_understood_as_python_writes_it(folder, tmp_path):
    text = (folder / "config.json").read_text()
    fields = json.loads(text) | {"time_step_limit": [0.0, float("inf")]}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert read_geometry(tmp_path) == read_geometry(folder)


def test_cuda_refuses_widths_of_convolutions_without_a_kernel(folder):
    _, geometry = read_geometry(folder)
    check_recurrent(geometry)
    with pytest.raises(ConfigError, match="no CUDA kernel supports a convolution of width 9; it must be 2 to 8"):
        check_recurrent(replace(geometry, recurrent=(ShortConvolution(64, 9),)))


MAMBA = {"architectures": ["FalconMambaForCausalLM"], "vocab_size": 199, "hidden_size": 64, "num_hidden_layers": 2}
JAMBA = {
    "architectures": ["JambaForCausalLM"],
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "max_position_embeddings": 512,
}


@pytest.mark.parametrize(
    ("fields", "changed", "reason"),
    [
        (
            MAMBA,
            {"state_size": 15},
            "no kernel supports a Mamba state size of 15; it must be a multiple of 8 up to",
        ),
        (MAMBA, {"state_size": 1024}, "no kernel supports a Mamba state size of 1024"),
        (MAMBA, {"conv_kernel": 9}, "no kernel supports a convolution of width 9; it must be 2 to 8"),
        (MAMBA, {"time_step_rank": 0}, "rank of a Mamba layer's time steps, 0, must be from 1 to its 128 channels"),
        (MAMBA, {"time_step_rank": 129}, "time steps, 129, must be"),
        (MAMBA, {"time_step_rank": "all"}, "mamba_dt_rank"),
        (MAMBA, {"intermediate_size": 0}, "intermediate_size=0 must be at least 1"),
        (MAMBA, {"mixer_rms_eps": 1.0}, "mixer_rms_eps=1 must be at least 0 and less than 1"),
        (MAMBA, {"hidden_act": "gelu"}, "hidden_act=gelu is not supported for Mamba; only silu is"),
        (JAMBA, {"mamba_d_state": 12}, "no kernel supports a Mamba state size of 12"),
        (JAMBA, {"attn_layer_offset": 8}, "attn_layer_offset=8 must be less than attn_layer_period=8"),
        (JAMBA, {"expert_layer_offset": 2}, "expert_layer_offset=2 must be less than expert_layer_period=2"),
        (JAMBA, {"num_experts_per_tok": 17}, "num_experts_per_tok=17 must be from 1 to the number of experts, 16"),
    ],
    ids=str,
)
def test_a_field_of_mamba_1_is_refused_by_name(tmp_path, fields, changed, reason):
    (tmp_path / "config.json").write_text(json.dumps(fields))
    _, geometry = read_geometry(tmp_path)
    assert [kind.step_rank for kind in geometry.recurrent if kind] == [4] * (2 if fields is MAMBA else 7)
    (tmp_path / "config.json").write_text(json.dumps(fields | changed))
    with pytest.raises(ConfigError, match=reason):
        read_geometry(tmp_path)


def test_a_projection_of_another_rank_is_refused_by_name(tmp_path):
    write_checkpoint("mamba", tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"time_step_rank": 7}))
    with pytest.raises(ConfigError, match=r"tensor backbone.layers.0.mixer.x_proj.weight has shape \[54, 96\], but"):
        ours(tmp_path)


def test_ranks_that_cannot_share_the_channels_are_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MAMBA | {"intermediate_size": 130}))
    _, geometry = read_geometry(tmp_path)
    with pytest.raises(ConfigError, match="tensor_parallel_size=4 does not divide the 130 channels of its Mamba layer"):
        geometry.check_tensor_parallel(4)
