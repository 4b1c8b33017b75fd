"""The special tokens that a tokenizer's files name are those that transformers finds in them."""

import json

import pytest
import tokenizers
from tokenizers import decoders, models

from paged_serve.frontend.text.tokenizer import Tokenizer

ADDED = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}


@pytest.mark.parametrize(
    ("config", "map_file"),
    [
        ({}, {}),
        ({"eos_token": "</s>", "bos_token": {"content": "<s>", "__type": "AddedToken", **ADDED}}, {}),
        ({}, {"eos_token": {"content": "</s>", **ADDED}, "bos_token": "<s>"}),
        ({"eos_token": "<s>", "pad_token": "</s>"}, {"eos_token": "</s>", "pad_token": None}),
        ({"eos_token": "<s>", "added_tokens_decoder": {}}, {"eos_token": "</s>", "bos_token": "<s>"}),
    ],
)
def test_special_tokens_are_those_of_transformers(tmp_path, config, map_file):
    from transformers import PreTrainedTokenizerFast

    tokenizer = tokenizers.Tokenizer(models.BPE({"a": 0, "<s>": 1, "</s>": 2}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(map_file))
    expected = PreTrainedTokenizerFast.from_pretrained(str(tmp_path)).special_tokens_map
    assert Tokenizer(str(tmp_path)).special_tokens == expected
