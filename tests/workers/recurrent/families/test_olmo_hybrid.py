"""OLMo Hybrid: its files in the published form, and sizes that config.json leaves out."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.models.registry import read_geometry

from ...paged_loop import PagedLoop
from ...tiny_models.checkpoints import ours, random_tokens, write_checkpoint

CONVOLUTIONS = [f"linear_attn.{part}_conv1d.weight" for part in "qkv"]
OF_TRAINING = {"attention_layer_norm": "input_layernorm", "feedforward_layer_norm": "post_attention_layernorm"}
SIZES = [48, 48, 96]  # of queries, keys and values, whose filters transformers saves as three equal parts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint("olmo-hybrid", folder)
    return folder


def as_converted(tensors):
    """With filters by their channels, and norms of attention layers under the names that OLMo 2 has."""
    tensors = dict(tensors)
    for layer in range(4):
        if f"model.layers.{layer}.linear_attn.A_log" in tensors:
            names = [f"model.layers.{layer}.{name}" for name in CONVOLUTIONS]
            filters = torch.cat([tensors[name] for name in names]).split(SIZES)
            tensors |= dict(zip(names, map(torch.clone, filters), strict=True))
        else:
            of_layer = f"model.layers.{layer}."
            norm = tensors.pop(f"{of_layer}feedforward_layer_norm.weight")
            tensors[f"{of_layer}post_attention_layernorm.weight"] = norm
    return tensors


def as_published(tensors):
    """As converted, with the norms of recurrent layers under the names that most families have."""
    found = as_converted(tensors)
    for old, new in OF_TRAINING.items():
        found = {name.replace(old, new): each for name, each in found.items()}
    return found


def logits(folder):
    loop = PagedLoop(ours(folder))
    return loop.prefill(loop.row(random_tokens(20)))


@pytest.mark.parametrize("form", [as_published, as_converted])
def test_files_as_published_and_as_transformers_saves_them_are_the_same_model(form, folder, tmp_path):
    write_checkpoint("olmo-hybrid", tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    published = form(saved)
    assert {name: each.shape for name, each in published.items()} != {name: each.shape for name, each in saved.items()}
    save_file(published, tmp_path / "model.safetensors")
    assert torch.equal(logits(tmp_path), logits(folder))


@pytest.mark.parametrize("channels", [40, 56])
def test_filters_of_other_channels_are_refused_by_name(channels, tmp_path):
    write_checkpoint("olmo-hybrid", tmp_path)
    tensors = as_published(load_file(tmp_path / "model.safetensors"))
    name = f"model.layers.0.{CONVOLUTIONS[1]}"
    save_file(tensors | {name: torch.ones(channels, 1, 4)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=rf"{name} has shape \[{channels}, 1, 4\], but .* asks for \[48, 1, 4\]"):
        ours(tmp_path)


def test_sizes_that_are_left_out_follow_from_those_of_attention(folder, tmp_path):
    fields = json.loads((folder / "config.json").read_text())
    bare = {name: value for name, value in fields.items() if not name.startswith("linear_")}
    (tmp_path / "config.json").write_text(json.dumps(bare))
    assert read_geometry(tmp_path)[1].recurrent == read_geometry(folder)[1].recurrent


@pytest.mark.parametrize(
    ("rope", "kind"),
    [
        ({"rope_parameters": None}, "none"),
        ({"rope_parameters": {"rope_theta": None, "rope_type": None}}, "none"),
        ({"rope_theta": None}, "none"),
        ({"rope_theta": 500000.0}, "default"),
        ({"rope_parameters": {"rope_theta": 500000.0}}, "default"),
    ],
    ids=str,
)
def test_heads_are_rotated_if_there_is_a_theta_in_either_format(rope, kind, folder, tmp_path):
    fields = json.loads((folder / "config.json").read_text())
    fields = {name: value for name, value in fields.items() if name != "rope_parameters"}
    (tmp_path / "config.json").write_text(json.dumps(fields | rope))
    assert {each.kind for each in read_geometry(tmp_path)[1].ropes} == {kind}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"hidden_act": "gelu"}, "hidden_act=gelu is not supported for OLMo Hybrid; only silu is"),
        ({"linear_key_head_dim": 18}, "no kernel supports linear_key_head_dim=18; it must be a multiple of 4"),
        ({"num_attention_heads": "4"}, "Expected `int`, got `str` - at `\\$.num_attention_heads`"),
    ],
    ids=str,
)
def test_a_field_is_refused_by_name(folder, tmp_path, changed, reason):
    fields = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | changed))
    with pytest.raises(ConfigError, match=reason):
        read_geometry(tmp_path)
