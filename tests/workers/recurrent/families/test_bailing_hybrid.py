"""Ling 3: config.json and files in the published form, and what is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.backends.cuda.recurrences import check_recurrent
from paged_serve.workers.models.registry import read_geometry

from ...paged_loop import PagedLoop
from ...tiny_models.checkpoints import ours, random_tokens, write_checkpoint

OF_TRANSFORMERS = ("layer_types", "mlp_layer_types", "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
PUBLISHED = {
    "architectures": ["BailingMoeV3ForCausalLM"],
    "head_dim": 24,
    "first_k_dense_replace": 1,
    "no_kda_lora": True,
    "gated_attention_proj_granularity_type": "head_wise",
    "moe_shared_expert_intermediate_size": 48,
    "partial_rotary_factor": 0.5,
    "expert_swiglu_limit_list": [None, 0, None, 0],
}
RENAMED = {
    "num_experts_per_token": "num_experts_per_tok",
    "num_expert_group": "n_group",
    "moe_renormalize": "norm_topk_prob",
    "model_max_length": "max_position_embeddings",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint("bailing-hybrid", folder)
    return folder


def as_published(folder):
    fields = json.loads((folder / "config.json").read_text())
    kept = {RENAMED.get(name, name): each for name, each in fields.items() if name not in OF_TRANSFORMERS}
    return kept | PUBLISHED


def logits(folder):
    loop = PagedLoop(ours(folder))
    return loop.prefill(loop.row(random_tokens(20)))


def test_a_published_folder_and_one_that_transformers_saved_are_the_same_model(folder, tmp_path):
    tensors = load_file(folder / "model.safetensors")
    of_delta = {name.partition("A_log")[0] for name in tensors if name.endswith("A_log")}
    renamed = {f"{layer}dense.weight": f"{layer}o_proj.weight" for layer in of_delta}
    assert renamed.keys() < tensors.keys()
    later = {"model.layers.4.enorm.weight": torch.ones(64)}  # of multi-token prediction
    save_file({renamed.get(name, name): each for name, each in tensors.items()} | later, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(as_published(folder)))
    assert read_geometry(tmp_path)[1] == read_geometry(folder)[1]
    assert torch.equal(logits(tmp_path), logits(folder))


def test_fields_that_are_left_out_have_the_values_of_transformers(tmp_path):
    import transformers

    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 12, "num_attention_heads": 4}
    config = transformers.BailingHybridConfig(**sizes, max_position_embeddings=512, pad_token_id=0)
    found = []
    for fields in (json.loads(config.to_json_string(use_diff=False)), sizes | {"max_position_embeddings": 512}):
        own = {"architectures": ["BailingHybridForCausalLM"], "vocab_size": 300, "eos_token_id": 2}
        (tmp_path / "config.json").write_text(json.dumps(fields | own))
        found.append(read_geometry(tmp_path)[1])
    assert found[0] == found[1]


def test_without_the_safe_gate_decays_have_no_bound(folder, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(as_published(folder) | {"kda_safe_gate": False}))
    bounds = [[kind.lower_bound for kind in read_geometry(each)[1].recurrent if kind] for each in (folder, tmp_path)]
    assert bounds == [[-5.0, -5.0], [0.0, 0.0]]


def test_without_cuda_kernels_the_layer_is_refused_by_name(folder):
    with pytest.raises(ConfigError, match="Kimi delta attention has no CUDA kernels; use --device cpu"):
        check_recurrent(read_geometry(folder)[1])


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"layer_group_size": 3}, "layer_group_size=3 must divide num_hidden_layers=4, or layer_types state"),
        ({"layer_group_size": 0}, "layer_group_size=0 must divide num_hidden_layers=4"),
        ({"kda_lower_bound": 1.0}, "kda_lower_bound=1 must be from -80 to 0"),
        ({"no_kda_lora": False}, "no_kda_lora=False is not supported for Ling 3; only True is"),
        ({"gated_attention_proj_granularity_type": "element_wise"}, "granularity_type=element_wise is not supported"),
        ({"expert_swiglu_limit_list": [None, 7.0]}, r"expert_swiglu_limit_list=\[None, 7.0\] is not supported"),
        ({"moe_shared_expert_intermediate_size": 96}, "moe_shared_expert_intermediate_size=96 is not supported"),
        ({"score_function": "softmax"}, "score_function=softmax is not supported for Ling 3; only sigmoid is"),
        ({"use_qkv_bias": True}, "use_qkv_bias=True is not supported for Ling 3; only False is"),
        ({"num_hidden_layers": "4"}, "Expected `int`, got `str` - at `\\$.num_hidden_layers`"),
    ],
    ids=str,
)
def test_a_field_is_refused_by_name(folder, tmp_path, changed, reason):
    (tmp_path / "config.json").write_text(json.dumps(as_published(folder) | changed))
    with pytest.raises(ConfigError, match=reason):
        read_geometry(tmp_path)
