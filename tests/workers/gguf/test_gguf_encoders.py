"""A GGUF file of an encoder gives the vectors and scores of the folder that it is made of, bit for bit."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.frontend.gguf.folder import make_folder
from paged_serve.protocol.errors import ConfigError

from ...gguf_encoders import KINDS, dequantized, write_encoder
from ...gguf_files import Type, write_gguf
from ..pooling.kinds_of_encoders import ENCODERS, tokens
from ..pooling.references import add_modules, write_reference
from ..pooling.serving import vectors
from ..tiny_models.checkpoints import ours
from .models import write_model

FAMILIES = {
    "BertModel": torch.float32,
    "RobertaModel": torch.float16,
    "XLMRobertaModel": torch.bfloat16,
    "DistilBertModel": torch.float32,
    "NomicBertModel": torch.float32,
}
OTHERS = {  # as other files, with what these cannot have otherwise
    "Gemma3TextModel": {"query_pre_attn_scalar": 32, "sliding_window_pattern": 6, "num_hidden_layers": 6},
    "ModernBertModel": {},
    "EuroBertModel": {},
}
MODES = {"mean": "mean_tokens", "cls": "cls_token", "last": "lasttoken"}
PROMPT = tokens(60)


@pytest.mark.parametrize("name", FAMILIES)
def test_vectors_are_those_of_the_folder(name, tmp_path, pools):
    folder = tmp_path / "folder"
    write_reference(folder, name, ENCODERS[name] | {"layer_norm_eps": 0.05}, FAMILIES[name])
    made = make_folder(write_encoder(folder, tmp_path / "model.gguf"), tmp_path / "made")
    for pool in pools:
        file, expected = ours(made, pool=pool), ours(folder, pool=pool)
        assert file.dtype == FAMILIES[name]
        assert file.geometry.max_position_embeddings == expected.geometry.max_position_embeddings
        for task in ("embed", "token_embed"):
            assert vectors(file, PROMPT, task=task).tobytes() == vectors(expected, PROMPT, task=task).tobytes()


@pytest.mark.parametrize("name", OTHERS)
def test_vectors_of_other_encoders_are_those_of_the_folder(name, tmp_path):
    folder = tmp_path / "folder"
    write_reference(folder, name, ENCODERS[name] | OTHERS[name], torch.bfloat16)
    file = write_gguf(folder, tmp_path / "model.gguf", pooling_type=1)
    made = make_folder(file, tmp_path / "made", has_tokenizer=name != "ModernBertModel")
    assert vectors(ours(made), PROMPT).tobytes() == vectors(ours(folder, pooling="mean"), PROMPT).tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_pooled_as_the_file_says_and_normalised(kind, tmp_path):
    folder = tmp_path / "folder"
    write_reference(folder, "BertModel", ENCODERS["BertModel"])
    add_modules(folder, MODES[kind], "Normalize")
    made = make_folder(write_encoder(folder, tmp_path / "model.gguf", kind), tmp_path / "made")
    model = ours(made)
    assert (model.pooling.spec.kind, model.pooling.spec.normalizes) == (kind, True)
    assert vectors(model, PROMPT).tobytes() == vectors(ours(folder), PROMPT).tobytes()


def test_vectors_of_a_decoder_are_pooled_as_its_file_says(tmp_path):
    folder = write_model("qwen3", tmp_path / "folder", torch.bfloat16)
    made = make_folder(write_gguf(folder, tmp_path / "model.gguf", pooling_type=1), tmp_path / "made")
    spec = ours(made).pooling.spec
    assert (spec.tasks, spec.kind) == (("generate", "embed", "token_embed"), "mean")
    assert vectors(ours(made), PROMPT).tobytes() == vectors(ours(folder, pooling="mean"), PROMPT).tobytes()


@pytest.mark.parametrize("labels", [1, 3])
def test_scores_of_rerankers_are_those_of_the_folder(labels, tmp_path, pools):
    folder = tmp_path / "folder"
    options = ENCODERS["XLMRobertaModel"] | {"num_labels": labels}
    write_reference(folder, "XLMRobertaForSequenceClassification", options)
    made = make_folder(write_encoder(folder, tmp_path / "model.gguf", bert__pooling_type=4), tmp_path / "made")
    pair = {"task": "classify", "second_text": 20}
    for pool in pools:
        found, expected = (vectors(ours(each, pool=pool), PROMPT, **pair) for each in (made, folder))
        assert found.tobytes() == expected.tobytes()
    fields = [json.loads((each / "config.json").read_text()) for each in (made, folder)]
    assert fields[0]["id2label"] == (fields[1].get("id2label") or {"0": "LABEL_0"})


def test_vectors_of_blocks_are_near_those_of_the_values_that_the_package_dequantizes(tmp_path, pools):
    folder, sizes = tmp_path / "folder", {"hidden_size": 64, "intermediate_size": 96}
    write_reference(folder, "BertModel", ENCODERS["BertModel"] | sizes)
    made = make_folder(write_encoder(folder, tmp_path / "model.gguf", "mean", Type.Q8_0), tmp_path / "made")
    file = folder / "model.safetensors"
    floats = ("position_embeddings", "token_type", "pooler")
    stored = {
        name: tensor if tensor.dim() == 1 or any(each in name for each in floats) else dequantized(tensor, Type.Q8_0)
        for name, tensor in load_file(file).items()
    }
    save_file(stored, file)
    add_modules(folder, MODES["mean"], "Normalize")
    expected = vectors(ours(folder), PROMPT)
    assert vectors(ours(made, "float32"), PROMPT).tobytes() == expected.tobytes()  # plain torch holds floats
    for pool in pools:
        model = ours(made, pool=pool)
        assert model.quantization["quantization"] == (
            "19 matrices Q8_0" if pool else "18 matrices Q8_0 held as float"  # with the embedding
        )
        assert (vectors(model, PROMPT) * expected).sum() > 0.99


@pytest.mark.parametrize(
    ("name", "options", "more", "message"),
    [
        ("BertForSequenceClassification", {"num_labels": 1}, {}, r"bert\.pooler\.dense"),
        ("RobertaForSequenceClassification", {"num_labels": 3}, {"bert__pooling_type": 1}, "pooling_type=1 is not sup"),
        ("BertModel", {}, {"bert__pooling_type": 4}, r"pooling_type=4 is not supported here; supported: 0 \(none\), 1"),
        ("BertModel", {}, {"bert__attention__causal": True}, "bert.attention.causal=True is not supported"),
        ("BertModel", {}, {"bert__attention__clamp_kqv": 8.0}, "bert.attention.clamp_kqv=8.0 is not supported"),
        ("NomicBertModel", {}, {"nomic-bert__expert_count": 8}, "a mixture of 8 experts"),
        (
            "RobertaForSequenceClassification",
            {"num_labels": 3},
            {"bert__classifier__output_labels": ["a"]},
            "classifier.output_labels has 1 labels, but cls.output.weight 3 rows",
        ),
    ],
)
def test_what_would_give_other_vectors_is_refused_by_name(name, options, more, message, tmp_path):
    folder = tmp_path / "folder"
    write_reference(folder, name, ENCODERS[f"{name.partition('For')[0].removesuffix('Model')}Model"] | options)
    file = write_encoder(folder, tmp_path / "model.gguf", **more)
    with pytest.raises(ConfigError, match=message):
        make_folder(file, tmp_path / "made")
