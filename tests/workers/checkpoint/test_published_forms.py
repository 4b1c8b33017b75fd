"""Config.json and tensors in forms that published files have and transformers does not write."""

import json

import pytest
from safetensors.torch import load_file, save_file

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.models.registry import read_geometry

from ..tiny_models.checkpoints import ours, write_checkpoint


@pytest.fixture
def made(tmp_path):
    """Writes a variant's checkpoint with other fields in its config.json, of which None ones are left out."""

    def make(variant, **fields):
        write_checkpoint(variant, tmp_path)
        found = json.loads((tmp_path / "config.json").read_text()) | fields
        kept = {name: value for name, value in found.items() if value is not None}
        (tmp_path / "config.json").write_text(json.dumps(kept))
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("variant", "architecture"),
    [("exaone-moe", "ExaoneMoEForCausalLM"), ("ernie4.5", "Ernie4_5_ForCausalLM")],
)
def test_another_spelling_of_an_architecture_is_the_same_family(variant, architecture, made):
    expected = read_geometry(made(variant))
    assert read_geometry(made(variant, architectures=[architecture])) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"is_moe_layer": [False, False, True]},
        {"first_last_k_dense_replace": 2},
        {"mlp_layer_types": ["dense", "dense", "sparse"], "is_moe_layer": [True, True, True]},
    ],
    ids=str,
)
def test_layers_of_k_exaone_are_dense_by_the_fields_of_any_release(fields, made):
    folder = made("exaone-moe", **{"mlp_layer_types": None, "first_k_dense_replace": None} | fields)
    assert [bool(each) for each in read_geometry(folder)[1].experts] == [False, False, True]


def test_layers_of_minimax_m2_that_predict_several_tokens_are_left_out(made):
    folder = made("minimax-m2", num_mtp_modules=2)
    tensors = load_file(folder / "model.safetensors")
    last = {name.replace(".0.", ".4.", 1): each.clone() for name, each in tensors.items() if ".layers.0." in name}
    save_file(tensors | last, folder / "model.safetensors")
    ours(folder)
    made("minimax-m2")
    save_file(tensors | last, folder / "model.safetensors")
    with pytest.raises(ConfigError, match=r"model\.layers\.4\."):
        ours(folder)


def test_experts_of_gemma_4_have_their_size_under_either_name(made):
    expected = read_geometry(made("gemma4-experts"))[1].experts
    size = expected[0].intermediate_size
    folder = made("gemma4-experts", moe_intermediate_size=None, expert_intermediate_size=size)
    assert read_geometry(folder)[1].experts == expected


def test_heads_of_hunyuan_have_their_size_under_either_name(made):
    expected = read_geometry(made("hunyuan", head_dim=24))[1].head_dim
    assert read_geometry(made("hunyuan", head_dim=None, attention_head_dim=24))[1].head_dim == expected == 24


def test_the_rotated_part_of_a_head_may_be_a_number_of_elements(made):
    folder = made("bamba", attn_rotary_emb=8)
    assert {rope.rotary_dim for rope in read_geometry(folder)[1].ropes} == {8}
    with pytest.raises(ConfigError, match="rotary_dim=8 is not supported for this family; only whole heads"):
        read_geometry(made("falcon-h1", attn_rotary_emb=8))
    read_geometry(made("falcon-h1", attn_rotary_emb=24))


def test_layers_of_mistral_have_windows_by_their_kinds(made):
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    folder = made("mistral-sliding", sliding_window=40, layer_types=kinds)
    assert read_geometry(folder)[1].sliding_windows == (40, 0, 40)
    assert read_geometry(made("mistral-sliding", sliding_window=40))[1].sliding_windows == (40, 40, 40)


def test_first_files_of_stablelm_name_the_rotated_part_and_epsilon_otherwise(made):
    left_out = dict.fromkeys(("partial_rotary_factor", "rope_parameters", "layer_norm_eps"))
    _, geometry = read_geometry(made("stablelm", **left_out, rope_pct=0.5, norm_eps=0.001))
    assert geometry.norm_eps == 0.001
    assert {rope.rotary_dim for rope in geometry.ropes} == {8}
