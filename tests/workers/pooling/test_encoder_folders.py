"""What the files of an encoder's folder say: heads, pooling, the longest text, tensors that are missing or unused."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config, ModelConfig
from paged_serve.workers.kv.budget import max_model_len

from ..tiny_models.checkpoints import ours
from .kinds_of_encoders import ENCODERS, in_turn, tokens
from .references import add_modules, assert_near, hidden_states, write_reference
from .serving import vectors


@pytest.mark.parametrize(
    "name",
    [
        *in_turn([name.replace("Model", "ForMaskedLM") for name in ENCODERS if "Gemma" not in name], 1),
        "ElectraForPreTraining",
    ],
)
def test_the_head_of_training_is_ignored(name, tmp_path):
    expected_model = write_reference(tmp_path, name, ENCODERS[f"{name.partition('For')[0]}Model"])
    expected = hidden_states(expected_model, tokens(40))[0]
    assert_near(vectors(ours(tmp_path), tokens(40)), expected / np.linalg.norm(expected))


def test_the_default_maximum_length_is_that_of_sentence_transformers(tmp_path):
    write_reference(tmp_path, "BertModel", ENCODERS["BertModel"])
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 100, "do_lower_case": false}')
    geometry = ours(tmp_path).geometry
    assert max_model_len(Config(), geometry) == 100
    assert max_model_len(Config(model=ModelConfig(max_model_len=200)), geometry) == 200
    with pytest.raises(ConfigError, match="256 positions"):
        max_model_len(Config(model=ModelConfig(max_model_len=257)), geometry)


def test_a_tensor_that_is_missing_or_unused_is_refused_by_name(tmp_path):
    write_reference(tmp_path, "BertModel", ENCODERS["BertModel"])
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "encoder.extra": torch.ones(2)}, file)
    with pytest.raises(ConfigError, match=r"does not explain: encoder\.extra"):
        ours(tmp_path)
    del tensors["embeddings.token_type_embeddings.weight"]
    save_file(tensors, file)
    with pytest.raises(ConfigError, match=r"no tensor embeddings\.token_type_embeddings\.weight"):
        ours(tmp_path)


def test_the_files_of_sentence_transformers_choose_the_mean(tmp_path):
    write_reference(tmp_path, "BertModel", ENCODERS["BertModel"])
    mean = vectors(ours(tmp_path, pooling="mean"), tokens(30))
    add_modules(tmp_path, "mean_tokens", "Normalize")
    assert vectors(ours(tmp_path), tokens(30)).tobytes() == mean.tobytes()


def test_a_folder_like_that_of_all_mpnet_base_v2_loads_as_it_is(tmp_path, make_pool):
    """Saved without its head but named with it; positions are stored, and texts are cut to 100 tokens."""
    expected_model = write_reference(tmp_path, "MPNetModel", ENCODERS["MPNetModel"] | {"layer_norm_eps": 1e-5})
    file, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    save_file({**load_file(file), "embeddings.position_ids": torch.arange(258).unsqueeze(0)}, file)
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": ["MPNetForMaskedLM"]}))
    add_modules(tmp_path, "mean_tokens", "Normalize")
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 100, "do_lower_case": false}')
    model, mean = ours(tmp_path, pool=make_pool()), hidden_states(expected_model, tokens(100)).mean(0)
    assert (model.geometry.usual_max_len, model.geometry.max_position_embeddings) == (100, 256)
    assert_near(vectors(model, tokens(100)), mean / np.linalg.norm(mean))


def test_a_folder_like_that_of_embeddinggemma_300m_loads_as_it_is(tmp_path, make_pool):
    """The mean of all tokens, two dense layers without biases, then length 1."""
    expected_model = write_reference(tmp_path, "Gemma3TextModel", ENCODERS["Gemma3TextModel"])
    add_modules(tmp_path, "mean_tokens", "Dense", "Dense", "Normalize")
    embedding = torch.from_numpy(hidden_states(expected_model, tokens(60)).mean(0))
    for number, (inputs, outputs) in enumerate([(64, 96), (96, 64)], start=2):
        (folder := tmp_path / f"{number}_Dense").mkdir()
        sizes = {"in_features": inputs, "out_features": outputs, "bias": False}
        kind = {"activation_function": "torch.nn.modules.linear.Identity"}
        (folder / "config.json").write_text(json.dumps(sizes | kind))
        weight = torch.randn((outputs, inputs), generator=torch.Generator().manual_seed(number))
        save_file({"linear.weight": weight}, folder / "model.safetensors")
        embedding = weight @ embedding
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 200, "do_lower_case": false}')
    model = ours(tmp_path, pool=make_pool())
    assert (model.geometry.usual_max_len, model.pooling.spec.tasks) == (200, ("embed",))
    assert_near(vectors(model, tokens(60)), (embedding / embedding.norm()).numpy())


def test_gemma_3_without_an_output_head_and_with_causal_attention_is_a_decoder(tmp_path, make_pool):
    options = ENCODERS["Gemma3TextModel"] | {"use_bidirectional_attention": False}
    expected = hidden_states(write_reference(tmp_path, "Gemma3TextModel", options), tokens(60))
    model = ours(tmp_path, pool=make_pool())
    assert not model.geometry.is_bidirectional
    assert_near(vectors(model, tokens(60), task="token_embed", use_activation=False), expected)
