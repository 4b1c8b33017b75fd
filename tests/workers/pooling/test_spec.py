"""The pooling settings that are read from a folder, and those that are refused by name."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.pooling.arithmetic import add_in_order, normalized, product, softmax
from paged_serve.workers.pooling.spec import PoolingSpec, read_spec

from ..tiny_models.checkpoints import ours, random_tokens
from ..tiny_models.tiny_model import write_tiny_model
from .references import add_modules, assert_near
from .serving import vectors


def spec_of(folder, head="tokens", wanted="auto", **fields) -> PoolingSpec:
    (folder / "config.json").write_text(json.dumps(fields))
    return read_spec(folder, head, "last", wanted, 64)


@pytest.mark.parametrize(
    ("mode", "kind"), [("mean_tokens", "mean"), ("cls_token", "cls"), ("lasttoken", "last"), ("max_tokens", None)]
)
def test_one_of_three_kinds_is_read_and_the_option_replaces_it(mode, kind, tmp_path):
    add_modules(tmp_path, mode, "Normalize")
    if kind is None:
        with pytest.raises(ConfigError, match=r"pooling by pooling_mode_max_tokens is not supported.*--pooling last"):
            spec_of(tmp_path)
    else:
        assert spec_of(tmp_path) == PoolingSpec(("generate", "embed", "token_embed"), kind)
    assert spec_of(tmp_path, wanted="cls").kind == "cls"


@pytest.mark.parametrize(("mode", "kind"), [("mean", "mean"), ("lasttoken", "last"), (["cls", "mean"], None)])
def test_the_newer_spelling_is_read_too(mode, kind, tmp_path):
    add_modules(tmp_path, "mean_tokens")
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"embedding_dimension": 64, "pooling_mode": mode}))
    if kind is None:
        with pytest.raises(ConfigError, match="pooling by cls and mean is not supported"):
            spec_of(tmp_path)
    else:
        assert spec_of(tmp_path).kind == kind


def test_prompts_that_are_not_pooled_are_refused_unless_the_option_accepts_them(tmp_path):
    add_modules(tmp_path, "mean_tokens")
    path = tmp_path / "1_Pooling" / "config.json"
    path.write_text(json.dumps({"pooling_mode_mean_tokens": True, "include_prompt": False}))
    with pytest.raises(ConfigError, match=r"include_prompt=false is not supported.*--pooling mean"):
        spec_of(tmp_path)
    assert spec_of(tmp_path, wanted="mean").kind == "mean"


def test_a_module_that_is_not_supported_is_refused_by_name(tmp_path):
    add_modules(tmp_path, "mean_tokens", "LSTM")
    with pytest.raises(ConfigError, match="a module LSTM is not supported"):
        spec_of(tmp_path)


def test_a_module_outside_the_folder_is_refused(tmp_path):
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "a.Pooling", "path": "../else"}]))
    with pytest.raises(ConfigError, match="outside the folder"):
        spec_of(tmp_path)


@pytest.mark.parametrize(
    ("fields", "count", "activation"),
    [
        ({}, 2, "softmax"),
        ({"id2label": {"0": "a"}}, 1, "sigmoid"),
        ({"id2label": {"0": "a", "1": "b", "2": "c"}}, 3, "softmax"),
        ({"num_labels": 5, "problem_type": "multi_label_classification"}, 5, "sigmoid"),
        ({"num_labels": 1, "problem_type": "regression"}, 1, "none"),
        ({"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, 1, "none"),
        ({"num_labels": 1, "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, 1, "none"),
    ],
)
def test_scores_become_probabilities_as_in_transformers(fields, count, activation, tmp_path):
    spec = spec_of(tmp_path, "labels", **fields)
    assert (spec.tasks, spec.num_labels, spec.activation) == (("classify",), count, activation)


def test_lengths_that_embeddings_were_trained_for_are_known(tmp_path):
    assert spec_of(tmp_path).matryoshka_dimensions == ()
    assert spec_of(tmp_path, is_matryoshka=False).matryoshka_dimensions == (64,)
    assert spec_of(tmp_path, matryoshka_dimensions=[32, 64]).matryoshka_dimensions == (32, 64)


def test_labels_have_no_other_kind(tmp_path):
    with pytest.raises(ConfigError, match="pooling=mean is for embeddings"):
        spec_of(tmp_path, "labels", "mean")


def test_a_dense_module_is_a_layer_after_pooling(tmp_path):
    write_tiny_model(tmp_path, torch.float32)
    plain = vectors(ours(tmp_path), random_tokens(20), use_activation=False)
    add_modules(tmp_path, "lasttoken", "Dense", "Normalize")
    folder = tmp_path / "2_Dense"
    folder.mkdir()
    weight, bias = torch.randn(24, 64), torch.randn(24)
    save_file({"linear.weight": weight, "linear.bias": bias}, folder / "model.safetensors")
    fields = {"in_features": 64, "out_features": 24, "bias": True}
    (folder / "config.json").write_text(
        json.dumps(fields | {"activation_function": "torch.nn.modules.activation.Tanh"})
    )
    model = ours(tmp_path)
    assert (model.pooling.embedding_size, model.pooling.spec.tasks) == (24, ("generate", "embed"))
    expected = np.tanh(plain @ weight.numpy().T + bias.numpy())
    assert_near(vectors(model, random_tokens(20)), expected / np.linalg.norm(expected))
    (folder / "config.json").write_text(
        json.dumps(fields | {"activation_function": "torch.nn.modules.activation.ReLU"})
    )
    with pytest.raises(ConfigError, match="ReLU over 64 numbers is not supported"):
        ours(tmp_path)


def test_sums_are_chains_that_do_not_depend_on_other_rows():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((300, 37)).astype(np.float32)
    whole, parts = np.zeros(37, np.float32), np.zeros(37, np.float32)
    add_in_order(whole, rows)
    for start, stop in ((0, 1), (1, 130), (130, 300)):
        add_in_order(parts, rows[start:stop])
    assert whole.tobytes() == parts.tobytes()
    weight, bias = rng.standard_normal((5, 37)).astype(np.float32), rng.standard_normal(5).astype(np.float32)
    for together in (product(rows, weight, bias), normalized(rows), softmax(rows)):
        assert np.isfinite(together).all()
    one = slice(7, 8)
    assert product(rows, weight, bias)[one].tobytes() == product(rows[one], weight, bias).tobytes()
    assert normalized(rows)[one].tobytes() == normalized(rows[one]).tobytes()
    by_hand = np.float32(0)
    for x, w in zip(rows[7], weight[3], strict=True):
        by_hand = by_hand + x * w
    assert product(rows, weight, None)[7, 3] == by_hand
    assert (normalized(np.zeros((1, 4), np.float32)) == 0).all()
