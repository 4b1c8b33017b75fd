"""Servers of small encoders with random weights: scores of pairs and embeddings equal those of transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from paged_serve import LLM
from paged_serve.protocol.errors import ConfigError, InvalidRequest

from ...workers.pooling.references import add_modules, write_reference
from ..serving import serving

pytestmark = pytest.mark.nightly
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, *["the", "capital", "of", "france", "is", "paris", "cat", "sleep", "a", "lot", "blue", "sea", "##s"]]
TEXTS = ["The capital of France", "Cats sleep a lot", "The sea is blue", "Paris is the capital of France " * 8]
SIZE = {"max_position_embeddings": 64}


def write_tokenizer(folder: Path) -> Any:
    """A BERT tokenizer with few words, of transformers."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = tokenizers.Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(SPECIAL)
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, model_input_names=inputs, **names)
    fast.save_pretrained(folder)
    return fast


def test_a_cross_encoder_scores_pairs_as_transformers_does(tmp_path):
    reference = write_reference(tmp_path, "BertForSequenceClassification", SIZE | {"num_labels": 1})
    tokenizer = write_tokenizer(tmp_path)
    pairs = tokenizer([TEXTS[0]] * 4, TEXTS, truncation="longest_first", max_length=30)
    with torch.no_grad():
        expected = [
            torch.sigmoid(reference(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types])).logits).item()
            for ids, types in zip(pairs["input_ids"], pairs["token_type_ids"], strict=True)
        ]
    with serving(str(tmp_path)) as server:
        body = {"text_1": TEXTS[0], "text_2": TEXTS, "truncate_prompt_tokens": 30}
        status, answer = server.post("/score", body)
        assert status == 200, answer
        scores = [each["score"] for each in answer["data"]]
        assert scores == pytest.approx(expected, rel=1e-4)
        assert answer["usage"]["prompt_tokens"] == sum(map(len, pairs["input_ids"]))
        status, ranking = server.post(
            "/v1/rerank", {"query": TEXTS[0], "documents": TEXTS, "truncate_prompt_tokens": 30}
        )
        assert [each["relevance_score"] for each in ranking["results"]] == sorted(scores, reverse=True)
        status, classes = server.post("/classify", {"input": TEXTS[0]})
        assert classes["data"][0]["num_classes"] == 1
        for path, wrong in (("/v1/chat/completions", {"messages": []}), ("/v1/embeddings", {"input": "a"})):
            status, answer = server.post(path, wrong)
            assert status == 400
            assert "serves classify: use /classify." in answer["error"]["message"]


def test_an_encoders_embeddings_are_those_of_sentence_transformers_files(tmp_path):
    reference = write_reference(tmp_path, "BertModel", SIZE)
    tokenizer = write_tokenizer(tmp_path)
    add_modules(tmp_path, "mean_tokens", "Normalize")
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20, "do_lower_case": False}))
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "paris "}}))
    expected = []
    for text in TEXTS:
        ids = tokenizer(f"paris {text}", truncation=True, max_length=20)["input_ids"]
        with torch.no_grad():
            mean = reference(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(0)
        expected.append((mean / mean.norm()).tolist())
    with serving(str(tmp_path)) as server:
        body = {"input": TEXTS, "prompt_name": "query", "truncate_prompt_tokens": -1}
        status, answer = server.post("/v1/embeddings", body)
        assert status == 200, answer
        for one, numbers in zip(answer["data"], expected, strict=True):
            assert one["embedding"] == pytest.approx(numbers, abs=1e-4)
        status, answer = server.post("/v1/embeddings", {"input": TEXTS})
        assert (status, answer["error"]["param"]) == (400, "input")
        assert answer["error"]["message"].startswith("This model accepts at most 20 tokens; input[3] has ")


def test_texts_and_configurations_that_a_token_classifier_cannot_use_are_refused_on_every_surface(tmp_path):
    special = {"cls_token_id": 2, "sep_token_id": 3, "pad_token_id": 0}
    write_reference(
        tmp_path, "ModernBertForTokenClassification", SIZE | special | {"local_attention": 8, "num_labels": 3}
    )
    write_tokenizer(tmp_path)
    long = "Paris is the capital of France " * 12
    says = "This model accepts at most 64 tokens; input[1] has 74"
    with serving(str(tmp_path)) as server:
        status, answer = server.post("/pooling", {"input": TEXTS[1]})
        assert (status, len(answer["data"][0]["data"])) == (200, 7), "with [CLS], ##s and [SEP]"
        status, answer = server.post("/pooling", {"input": [TEXTS[1], long]})
        assert (status, answer["error"]["param"]) == (400, "input")
        assert answer["error"]["message"].startswith(says)
        status, answer = server.post("/pooling", {"input": [[2, 199, 3]]})
        assert (status, answer["error"]["param"]) == (400, "input")
        assert "199" in answer["error"]["message"], "the vocabulary has 199 tokens"
    with LLM(str(tmp_path)) as llm:
        assert llm.encode(TEXTS[1], pooling_task="token_classify")[0].outputs.data.shape == (7, 3)
        with pytest.raises(InvalidRequest, match="at most 64 tokens"):
            llm.encode([TEXTS[1], long], pooling_task="token_classify")
        with pytest.raises(InvalidRequest, match="199"):
            llm.encode({"prompt_token_ids": [2, 199, 3]}, pooling_task="token_classify")
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"local_attention": 0}))
    with pytest.raises(ConfigError, match="local_attention=0 must be at least 2"):
        LLM(str(tmp_path))
