"""Scores of each token, or of each step: token classifiers and reward models that are decoders."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.protocol.errors import ConfigError, InvalidRequest
from paged_serve.protocol.messages.pooling_params import PoolingParams

from ..models.families.test_renamed_families import internlm2
from ..tiny_models.checkpoints import ours, random_tokens
from .references import assert_near, hidden_states, label_scores, write_reference
from .serving import new_process, numbers, request_of, vectors

TAG = 17


def write_rewards(folder, architecture, layers, change=lambda config, tensors: (config, tensors)):
    """A random decoder with the tensors `layers` behind it; returns transformers' model without them."""
    family = architecture.partition("For")[0].replace("InternLM2", "Llama")
    model = write_reference(folder, f"{family}Model", {"attention_bias": True} if family == "Llama" else {})
    path = folder / "config.json"
    tensors = {f"model.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    config, tensors = change(json.loads(path.read_text()), tensors)
    save_file(tensors | layers, folder / "model.safetensors")
    path.write_text(json.dumps(config | {"architectures": [architecture]}))
    return model


def qwen2_layers(outputs):
    generator = torch.Generator().manual_seed(outputs)
    shapes = {
        "score.0.weight": (64, 64),
        "score.0.bias": (64,),
        "score.2.weight": (outputs, 64),
        "score.2.bias": (outputs,),
    }
    return {name: 0.05 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def qwen2_scores(model, prompt, layers):
    hidden = np.maximum(
        hidden_states(model, prompt) @ layers["score.0.weight"].numpy().T + layers["score.0.bias"].numpy(), 0
    )
    return hidden @ layers["score.2.weight"].numpy().T + layers["score.2.bias"].numpy()


def steps_of(prompt):
    """The prompt with a tag after each ten tokens."""
    return [TAG if index % 10 == 9 else token if token != TAG else 3 for index, token in enumerate(prompt)]


@pytest.mark.parametrize("name", ["LlamaForTokenClassification", "Qwen2ForTokenClassification"])
def test_scores_of_each_token_agree_with_transformers(name, tmp_path, pools):
    expected = label_scores(write_reference(tmp_path, name, {"num_labels": 3}), random_tokens(50))
    for pool in pools:
        found = vectors(ours(tmp_path, pool=pool), random_tokens(50), task="token_classify", use_activation=False)
        assert_near(found, expected)


def test_a_reward_model_scores_each_token_by_its_two_layers(tmp_path, pools):
    prompt, layers = random_tokens(40), qwen2_layers(1)
    expected = qwen2_scores(write_rewards(tmp_path, "Qwen2ForRewardModel", layers), prompt, layers)
    for pool in pools:
        model = ours(tmp_path, pool=pool)
        assert model.pooling.spec.tasks == ("token_classify",)
        assert np.abs(vectors(model, prompt, task="token_classify") - expected).max() < 1e-4 * np.abs(expected).max()


def test_a_reward_model_of_internlm2_has_one_layer(tmp_path):
    prompt, weight = random_tokens(40), torch.randn(1, 64, generator=torch.Generator().manual_seed(1))
    model = write_rewards(tmp_path, "InternLM2ForRewardModel", {"v_head.weight": weight}, internlm2)
    expected = hidden_states(model, prompt) @ weight.numpy().T
    found = vectors(ours(tmp_path), prompt, task="token_classify")
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


def test_a_process_reward_model_gives_each_steps_probabilities(tmp_path, make_pool):
    prompt, layers = steps_of(random_tokens(55)), qwen2_layers(2)
    scores = qwen2_scores(write_rewards(tmp_path, "Qwen2ForProcessRewardModel", layers), prompt, layers)
    scores = scores[np.array(prompt) == TAG]
    model, asked = ours(tmp_path, pool=make_pool()), {"task": "token_classify", "step_tag_id": TAG}
    assert len(scores) == 5
    found = vectors(model, prompt, **asked)
    assert_near(found, np.exp(scores) / np.exp(scores).sum(1, keepdims=True))
    assert_near(vectors(model, prompt, **asked, use_activation=False, returned_token_ids=(1, 0)), scores[:, ::-1])
    in_chunks = new_process(model, max_num_batched_tokens=7)
    in_chunks.add(request_of(1, (prompt, PoolingParams(**asked))))
    while not in_chunks.is_idle:
        for act in (in_chunks.plan, in_chunks.execute, in_chunks.apply, in_chunks.read):
            act()
    assert numbers(in_chunks.received[1].pooled).tobytes() == found.tobytes()


@pytest.mark.parametrize(
    ("prompt", "params", "told"),
    [
        ([1, 2], {"task": "token_classify", "step_tag_id": TAG}, "no such token"),
        ([1, 2], {"task": "token_classify", "returned_token_ids": (0, 2)}, "columns 0 to 1"),
    ],
)
def test_what_no_step_can_have_is_refused_by_name(prompt, params, told, tmp_path):
    write_rewards(tmp_path, "Qwen2ForProcessRewardModel", qwen2_layers(2))
    process = new_process(ours(tmp_path))
    with pytest.raises(InvalidRequest, match=told):
        process.engine.facts.pooling.check(request_of(1, (prompt, PoolingParams(**params))), len(prompt), 256)


def test_layers_that_do_not_fit_are_refused(tmp_path):
    write_rewards(tmp_path, "Qwen2ForRewardModel", qwen2_layers(2))
    with pytest.raises(ConfigError, match=r"score\.2\.weight"):
        ours(tmp_path)
