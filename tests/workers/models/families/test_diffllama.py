"""DiffLlama: the factor of a layer, what is refused, and products whose rows are read twice."""

import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.backends.cuda.backend import computes
from paged_serve.workers.models.registry import read_geometry

from ...paged_loop import PagedLoop
from ...tiny_models.checkpoints import ours, random_tokens, write_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint("diffllama-grouped", folder)
    return folder


def test_the_second_softmax_has_a_factor_that_grows_with_the_layer(folder):
    tensors = load_file(folder / "model.safetensors")
    for index, layer in enumerate(ours(folder).layers):
        q1, k1, q2, k2 = (tensors[f"model.layers.{index}.self_attn.lambda_{name}"] for name in ("q1", "k1", "q2", "k2"))
        initial = 0.8 - 0.6 * math.exp(-0.3 * index)
        expected = float(torch.dot(q1, k1).exp() - torch.dot(q2, k2).exp()) + initial
        assert math.isclose(layer.mixer.factor, expected, rel_tol=1e-5)


def test_ranks_have_whole_pairs_of_kv_heads(folder):
    geometry = read_geometry(folder)[1]
    geometry.check_tensor_parallel(2)
    with pytest.raises(ConfigError, match="=4 does not divide the model's 2 pairs of KV heads; use one of 1, 2"):
        geometry.check_tensor_parallel(4)


def test_an_odd_number_of_kv_heads_is_refused(folder, tmp_path):
    fields = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"num_attention_heads": 9, "num_key_value_heads": 3}))
    with pytest.raises(ConfigError, match="num_key_value_heads=3 must be even, as differential attention takes"):
        read_geometry(tmp_path)


def test_torch_computes_it_on_cuda(folder):
    geometry = replace(read_geometry(folder)[1], dtype=torch.bfloat16)
    assert not computes(geometry)
    assert computes(replace(geometry, is_differential=False))


@pytest.mark.parametrize(("quantization", "cached"), [("int8", None), ("auto", torch.int8)], ids=str)
def test_coded_weights_and_coded_keys_change_little(folder, make_pool, quantization, cached):
    if (pool := make_pool()) is None:
        pytest.skip("the kernels are not built")
    coded = ours(folder, "bfloat16", pool=pool, quantization=quantization)
    loops = PagedLoop(ours(folder, "bfloat16", pool=pool)), PagedLoop(coded, dtype=cached)
    exact, found = (loop.prefill(loop.row(random_tokens(40))) for loop in loops)
    assert 0 < (found - exact).norm() < 0.1 * exact.norm()
