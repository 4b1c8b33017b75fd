"""Kimi Linear: config.json and files in the published form, and what is refused."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.backends.cuda.recurrences import check_recurrent
from paged_serve.workers.kv.cache_layout import CacheLayout
from paged_serve.workers.models.registry import read_geometry

from ...paged_loop import PagedLoop
from ...tiny_models.checkpoints import ours, random_tokens, write_checkpoint

OF_TRANSFORMERS = ("layer_types", "mlp_layer_types", "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
PUBLISHED = {
    "linear_attn_config": {
        "kda_layers": [1, 3, 4],
        "full_attn_layers": [2],
        "num_heads": 4,
        "head_dim": 20,
        "short_conv_kernel_size": 4,
    },
    "first_k_dense_replace": 1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint("kimi-linear", folder)
    return folder


def as_published(fields):
    return {name: value for name, value in fields.items() if name not in OF_TRANSFORMERS} | PUBLISHED


def logits(folder):
    loop = PagedLoop(ours(folder))
    return loop.prefill(loop.row(random_tokens(20)))


def test_a_published_folder_and_one_that_transformers_saved_are_the_same_model(folder, tmp_path):
    tensors = load_file(folder / "model.safetensors")
    dense = "model.layers.0.block_sparse_moe."  # transformers saves dense layers under the name of experts, too
    renamed = {name.replace(dense, "model.layers.0.mlp."): each for name, each in tensors.items()}
    assert renamed.keys() != tensors.keys()
    save_file(renamed, tmp_path / "model.safetensors")
    fields = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(as_published(fields)))
    assert read_geometry(tmp_path)[1] == read_geometry(folder)[1]
    assert torch.equal(logits(tmp_path), logits(folder))


def test_keys_and_values_of_latent_attention_are_one_area_of_a_block(folder):
    _, geometry = read_geometry(folder)
    layout = CacheLayout.of(geometry, 512, 16)
    assert layout.groups.unit == layout.groups.layers_per_group == 1
    assert layout.bytes_per_block == layout.block_size * geometry.area_bytes_per_token(1, geometry.dtype)


def test_without_cuda_kernels_the_layer_is_refused_by_name(folder):
    _, geometry = read_geometry(folder)
    with pytest.raises(ConfigError, match="Kimi delta attention has no CUDA kernels; use --device cpu"):
        check_recurrent(geometry)
    check_recurrent(
        replace(
            geometry,
            recurrent=tuple(each and replace(each, has_decays_of_elements=False) for each in geometry.recurrent),
        )
    )


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"linear_attn_config": PUBLISHED["linear_attn_config"] | {"kda_layers": [1, 3]}}, "must name each of the 4"),
        ({"linear_attn_config": {"head_dim": "20"}}, "linear_attn_config cannot be used: Expected `int`, got `str`"),
        ({"linear_attn_config": [4]}, "linear_attn_config cannot be used: Expected `object`"),
        ({"mla_use_output_gate": True}, "mla_use_output_gate=True is not supported for Kimi Linear; only False is"),
        ({"routed_expert_hidden_size": 32}, "routed_expert_hidden_size=32 is not supported for Kimi Linear"),
        ({"linear_attn_config": {"gate_lower_bound": -5.0}}, "gate_lower_bound=-5.0 is not supported"),
        ({"mla_use_nope": False}, "mla_use_nope=False is not supported for Kimi Linear; only True is"),
        ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func=softmax is not supported"),
        ({"moe_layer_freq": 2}, "moe_layer_freq=2 is not supported for Kimi Linear; only 1 is"),
        ({"hidden_act": "gelu"}, "hidden_act=gelu is not supported for Kimi Linear; only silu is"),
        ({"num_hidden_layers": "4"}, "Expected `int`, got `str` - at `\\$.num_hidden_layers`"),
    ],
    ids=str,
)
def test_a_field_is_refused_by_name(folder, tmp_path, changed, reason):
    fields = as_published(json.loads((folder / "config.json").read_text()))
    (tmp_path / "config.json").write_text(json.dumps(fields | changed))
    with pytest.raises(ConfigError, match=reason):
        read_geometry(tmp_path)
