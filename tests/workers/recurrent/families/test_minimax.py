"""MiniMax-Text-01: config.json in the published form, decays of lightning attention, and what is refused."""

import json
from dataclasses import replace

import pytest
import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.backends.cuda.recurrences import check_recurrent
from paged_serve.workers.models.registry import read_geometry

from ...tiny_models.checkpoints import ours, write_checkpoint

FACTORS = {
    f"layernorm_{part}_{which}": value
    for part in ("full_attention", "linear_attention", "mlp")
    for which, value in (("alpha", 3.5), ("beta", 1.25))
}
PUBLISHED = FACTORS | {"attn_type_list": [0, 1, 0, 0], "postnorm": True, "shared_intermediate_size": [0, 0, 0, 0]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint("minimax", folder)
    return folder


def as_published(folder):
    fields = json.loads((folder / "config.json").read_text())
    kept = {name: each for name, each in fields.items() if name != "layer_types" and not name.endswith("_factor")}
    return kept | PUBLISHED


@pytest.mark.parametrize("architecture", ["MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM"])
def test_a_published_config_and_that_of_transformers_mean_the_same_geometry(architecture, folder, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(as_published(folder) | {"architectures": [architecture]}))
    assert read_geometry(tmp_path)[1] == read_geometry(folder)[1]


def test_published_heads_are_partially_rotated(folder, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(as_published(folder) | {"rotary_dim": 12}))
    assert {rope.rotary_dim for rope in read_geometry(tmp_path)[1].ropes} == {12}


def test_heads_decay_by_their_slopes_and_later_layers_less(folder):
    scans = [layer.mixer.scan for layer in ours(folder).layers if hasattr(layer.mixer, "scan")]
    slopes = torch.tensor([0.25, 0.0625, 0.015625, 0.00390625])
    for scan, rate in zip(scans, (1.0, 1 / 3, 0.0), strict=True):
        torch.testing.assert_close(-scan.a, rate * slopes, atol=1.5e-5, rtol=1e-4)


def test_without_cuda_kernels_the_layer_is_refused_by_name(folder):
    _, geometry = read_geometry(folder)
    with pytest.raises(ConfigError, match="lightning attention has no CUDA kernels; use --device cpu"):
        check_recurrent(geometry)
    check_recurrent(replace(geometry, recurrent=()))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"postnorm": None}, "postnorm must be true for MiniMax-Text-01"),
        ({"attn_type_list": [0, 1, 0, 2]}, r"attn_type_list=\[0, 1, 0, 2\] must be a list of 0 \(linear\) and 1"),
        ({"attn_type_list": [0, 1]}, "layer_types names 2 layers, but the model has 4"),
        ({"layernorm_mlp_alpha": 2.0}, "mlp_alpha_factor=2 are not supported for MiniMax-Text-01; they must be equal"),
        ({"layernorm_mlp_beta": 0}, "mlp_beta_factor=0 must be a number above 0"),
        ({"shared_intermediate_size": [0, 0, 0, 8]}, r"shared_intermediate_size=\[0, 0, 0, 8\] is not supported"),
        ({"shared_intermediate_size": 8}, "shared_intermediate_size=8 is not supported for MiniMax-Text-01; only 0 is"),
        ({"sliding_window": 64}, "sliding_window=64 is not supported for MiniMax-Text-01"),
        ({"hidden_act": "gelu"}, "hidden_act=gelu is not supported for MiniMax-Text-01; only silu is"),
        ({"head_dim": 20}, "no kernel supports lightning attention with head_dim=20; it must be a multiple of 8"),
        ({"num_attention_heads": 6}, "num_attention_heads=6 must be a power of two, for lightning attention"),
    ],
    ids=str,
)
def test_a_field_is_refused_by_name(folder, tmp_path, changed, reason):
    (tmp_path / "config.json").write_text(json.dumps(as_published(folder) | changed))
    with pytest.raises(ConfigError, match=reason):
        read_geometry(tmp_path)
