"""Late-interaction models have a projected, normalised vector for each token and no other."""

import json
import random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.pooling_params import PoolingParams

from ..tiny_models.checkpoints import ours
from .kinds_of_encoders import ENCODERS, tokens
from .references import add_modules, assert_near, hidden_states, write_reference
from .serving import alone, answer_of, finish, new_process, request_of, vectors


def random_weight(outputs: int, inputs: int) -> torch.Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(outputs))


def write_colbert(folder, dtype=torch.float32):
    """A model as Stanford's ColBERT saves it, [24] numbers a token. Returns transformers' BERT and the projection."""
    reference = write_reference(folder, "BertModel", ENCODERS["BertModel"], dtype)
    weight = random_weight(24, 64).to(dtype)
    file, config = folder / "model.safetensors", folder / "config.json"
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(file).items()}
    save_file({**tensors, "linear.weight": weight}, file)
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": ["HF_ColBERT"]}))
    return reference, weight.float().numpy()


def add_dense(folder, name: str, weight: torch.Tensor, **more) -> None:
    """A Dense module as PyLate saves it."""
    (folder / name).mkdir()
    save_file({"linear.weight": weight}, folder / name / "model.safetensors")
    fields = {"in_features": weight.shape[1], "out_features": weight.shape[0], "bias": False}
    fields |= {"activation_function": "torch.nn.modules.linear.Identity"} | more
    (folder / name / "config.json").write_text(json.dumps(fields))


def write_pylate(folder):
    """ModernBERT and two layers after it, without pooling. Returns transformers' model and the layers' product."""
    reference = write_reference(folder, "ModernBertModel", ENCODERS["ModernBertModel"])
    names = ("", "1_Dense", "2_Dense")
    types = ("sentence_transformers.models.Transformer", "pylate.models.Dense.Dense", "pylate.models.Dense.Dense")
    modules = [{"idx": i, "name": str(i), "path": names[i], "type": types[i]} for i in range(3)]
    (folder / "modules.json").write_text(json.dumps(modules))
    layers = [random_weight(40, 64), random_weight(24, 40)]
    for name, weight in zip(names[1:], layers, strict=True):
        add_dense(folder, name, weight)
    return reference, (layers[1].double() @ layers[0].double()).float().numpy()


@pytest.mark.parametrize("write", [write_colbert, write_pylate])
def test_each_token_has_its_projected_vector_of_length_1(write, tmp_path, pools):
    reference, weight = write(tmp_path)
    expected = hidden_states(reference, tokens(70)) @ weight.T
    for pool in pools:
        model = ours(tmp_path, pool=pool)
        assert (model.pooling.spec.tasks, model.pooling.embedding_size) == (("token_embed",), 24)
        found = vectors(model, tokens(70), task="token_embed", use_activation=False)
        assert_near(found, expected)
        unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
        assert_near(vectors(model, tokens(70), task="token_embed"), unit)


def test_a_tokens_vector_has_the_same_bits_alone_and_in_any_company(tmp_path, make_pool):
    write_colbert(tmp_path, torch.bfloat16)
    model, rng = ours(tmp_path, pool=make_pool()), random.Random(4)
    items = [(tokens(90)[: rng.randint(1, 70)], PoolingParams("token_embed")) for _ in range(5)]
    process = new_process(model)
    for index, item in enumerate(items):
        process.add(request_of(index, item))
    finish(process)
    assert [answer_of(process, index) for index in range(5)] == [alone(model, item) for item in items]


def test_what_is_not_built_is_refused_by_name(tmp_path):
    write_colbert(tmp_path)
    with pytest.raises(ConfigError, match="pooling=mean is for one vector per text; this late-interaction model"):
        ours(tmp_path, pooling="mean")
    file = tmp_path / "model.safetensors"
    save_file({name: tensor for name, tensor in load_file(file).items() if name != "linear.weight"}, file)
    with pytest.raises(ConfigError, match=r"no tensor linear\.weight"):
        ours(tmp_path)


def test_a_dense_module_that_adds_its_input_is_refused(tmp_path):
    write_reference(tmp_path, "BertModel", ENCODERS["BertModel"])
    add_modules(tmp_path, "mean_tokens", "Dense")
    add_dense(tmp_path, "2_Dense", random_weight(64, 64), use_residual=True)
    with pytest.raises(ConfigError, match="use_residual=true is not supported"):
        ours(tmp_path)
