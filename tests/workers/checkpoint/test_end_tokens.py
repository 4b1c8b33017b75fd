"""Which tokens end a sequence: those of the model's configuration and the eos_token of its tokenizer."""

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.models.loading import read_model

from .small_configs import PLAIN

PIECES = {"a": 0, "b": 1, "</s>": 2, "<|im_end|>": 3}


def write(folder: Path, **files: dict) -> None:
    for name, fields in files.items():
        (folder / f"{name}.json").write_text(json.dumps(fields))


def write_tokenizer(folder: Path, model: models.Model | None = None) -> None:
    """A tokenizer with an added token that is not in its vocabulary."""
    tokenizer = tokenizers.Tokenizer(model or models.BPE(PIECES, []))
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture
def folder(tmp_path) -> Path:
    write(tmp_path, config=PLAIN)
    write_tokenizer(tmp_path)
    return tmp_path


def ends(folder: Path, tokenizer: str = "") -> tuple[int, ...]:
    return read_model(folder, ModelConfig(tokenizer=tokenizer))[1].eos_token_ids


def test_of_the_models_files_the_generation_config_comes_first(folder):
    assert ends(folder) == ()
    write(folder, config=PLAIN | {"eos_token_id": 2})
    assert ends(folder) == (2,)
    write(folder, generation_config={"eos_token_id": [5, 7], "top_p": 0.9})
    assert ends(folder) == (5, 7)
    write(folder, config=PLAIN | {"eos_token_id": [2, 3]}, generation_config={})
    assert ends(folder) == (2, 3)


def test_the_tokenizers_end_token_is_added(folder):
    write(folder, tokenizer_config={"eos_token": "<|im_end|>"})
    assert ends(folder) == (3,)
    write(folder, generation_config={"eos_token_id": [2, 3]})
    assert ends(folder) == (2, 3)
    write(folder, tokenizer_config={"eos_token": {"content": "<|end|>", "special": True}})
    assert ends(folder) == (2, 3, 4)


def test_an_older_folder_names_it_in_special_tokens_map(folder):
    write(folder, special_tokens_map={"eos_token": {"content": "<|im_end|>"}})
    assert ends(folder) == (3,)
    write(folder, tokenizer_config={"eos_token": "</s>"})
    assert ends(folder) == (3,)
    write(folder, tokenizer_config={"eos_token": "</s>", "added_tokens_decoder": {}})
    assert ends(folder) == (2,)


def test_a_tokenizer_of_another_folder_is_read_instead(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(other, models.Unigram([("</s>", 0.0), ("<unk>", -1.0)], unk_id=1))
    write(folder, tokenizer_config={"eos_token": "<|im_end|>"})
    write(other, tokenizer_config={"eos_token": "</s>"}, generation_config={"eos_token_id": 9})
    assert ends(folder, str(other)) == (0,)


def test_a_token_that_does_not_exist_is_no_end(folder):
    write(folder, tokenizer_config={"eos_token": "<|eot|>"})
    assert ends(folder) == ()
    write(folder, config=PLAIN | {"eos_token_id": [-1, 2, PLAIN["vocab_size"]]})
    assert ends(folder) == (2,)
    (folder / "tokenizer.json").unlink()
    assert ends(folder) == (2,)


@pytest.mark.parametrize("damaged", [{"added_tokens": [{"content": "</s>"}]}, {"model": {"vocab": [["</s>"]]}}, []])
def test_a_damaged_tokenizer_is_refused_by_name(folder, damaged):
    write(folder, tokenizer_config={"eos_token": "</s>"}, tokenizer=damaged)
    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be used"):
        ends(folder)
