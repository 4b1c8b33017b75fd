"""Servers of small encoders with random weights: scores of pairs and embeddings equal those of transformers."""

import json
from pathlib import Path

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ..workers.pooling.references import add_modules, write_reference
from .serving import serving

pytestmark = pytest.mark.nightly
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, *["the", "capital", "of", "france", "is", "paris", "cat", "sleep", "a", "lot", "blue", "sea", "##s"]]
TEXTS = ["The capital of France", "Cats sleep a lot", "The sea is blue", "Paris is the capital of France " * 8]
SIZE = {"max_position_embeddings": 64}


def write_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """A BERT tokenizer with few words."""
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
