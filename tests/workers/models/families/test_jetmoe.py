"""JetMoe: its experts' sizes, the bias of their outputs, and what is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.backends.cuda.backend import WITHOUT_ATTENTION_EXPERTS
from paged_serve.workers.kv.budget import expert_rows_bytes
from paged_serve.workers.models import loading
from paged_serve.workers.models.registry import read_geometry

from ...paged_loop import PagedLoop
from ...tiny_models.checkpoints import ours, random_tokens, reference_logits, transformers_model, write_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint("jetmoe", folder)
    return folder


def test_each_expert_has_a_query_for_each_kv_head(folder):
    geometry = read_geometry(folder)[1]
    assert geometry.num_heads == geometry.num_kv_heads == 4
    assert geometry.attention_experts.intermediate_size == 4 * 24
    assert geometry.norm_eps == 1e-6
    assert geometry.final_norm_eps == 0.01


def test_ranks_divide_kv_heads(folder, tmp_path):
    fields = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"num_key_value_heads": 2}))
    with pytest.raises(ConfigError, match="=4 does not divide the model's attention heads, 2; use one of 1, 2"):
        read_geometry(tmp_path)[1].check_tensor_parallel(4)


def test_memory_for_rows_of_experts_is_that_of_the_larger_mixture(folder):
    geometry = read_geometry(folder)[1]
    assert geometry.attention_experts.intermediate_size == geometry.intermediate_size
    wide = geometry.attention_experts.bytes_per_place(geometry.hidden_size, 4)
    assert expert_rows_bytes(geometry, 100) == wide * 256


@pytest.mark.parametrize("top_k", [1, 3])
def test_tokens_may_choose_any_number_of_experts(top_k, tmp_path, make_pool):
    write_checkpoint("jetmoe", tmp_path, fields={"num_experts_per_tok": top_k})
    prompt = random_tokens(50)
    expected = reference_logits(transformers_model(tmp_path), prompt)
    loop = PagedLoop(ours(tmp_path, pool=make_pool()))
    assert (loop.prefill(loop.row(prompt), 20) - expected).abs().max() < 1e-4 * expected.abs().max()


def test_a_mixture_without_its_bias_is_refused(folder, tmp_path):
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.self_attention.experts.bias"]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ConfigError, match=r"model\.layers\.1\.self_attention\.experts\.bias"):
        ours(tmp_path)


def test_without_cuda_kernels_it_is_refused_by_name(folder, monkeypatch):
    monkeypatch.setattr(loading, "device_of", lambda config: "cuda")
    with pytest.raises(ConfigError) as refused:
        ours(folder)
    assert str(refused.value) == WITHOUT_ATTENTION_EXPERTS


def test_a_bias_of_keys_and_values_is_refused(folder, tmp_path):
    fields = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"attention_bias": True}))
    with pytest.raises(ConfigError, match="attention_bias=True is not supported for JetMoe; only False is"):
        read_geometry(tmp_path)


def test_quantized_experts_change_little(folder, make_pool):
    if (pool := make_pool()) is None:
        pytest.skip("the kernels are not built")
    loops = [PagedLoop(ours(folder, "bfloat16", pool=pool, quantization=kind)) for kind in ("auto", "int8")]
    exact, found = (loop.prefill(loop.row(random_tokens(40))) for loop in loops)
    assert 0 < (found - exact).norm(dim=1).median() < 0.2 * exact.norm(dim=1).median()


def test_packed_weights_of_an_earlier_start_have_the_same_bits(folder, tmp_path, make_pool):
    if (pool := make_pool()) is None:
        pytest.skip("the kernels are not built")
    loops = [PagedLoop(ours(folder, pool=pool, packed_weights_dir=where)) for where in (None, *[str(tmp_path)] * 2)]
    first, *others = (loop.prefill(loop.row(random_tokens(30))) for loop in loops)
    assert all(torch.equal(first, other) for other in others)
