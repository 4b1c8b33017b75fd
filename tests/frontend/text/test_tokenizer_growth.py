"""A tokenizer.json that could expand a line to terabytes is refused; those of real models are not."""

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from paged_serve.frontend.config.model_folder import find_model_folder
from paged_serve.frontend.text.tokenizer import Tokenizer, read_json
from paged_serve.protocol.errors import ConfigError

BOMB = normalizers.Sequence([normalizers.Sequence([normalizers.Replace("a", "a" * 1000)] * 2)] * 2)


def folder_with(path: Path, **parts: object) -> str:
    made = tokenizers.Tokenizer(
        models.BPE({char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>"])
    for name, part in parts.items():
        setattr(made, name, part)
    made.save(str(path / "tokenizer.json"))
    return str(path)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"normalizer": BOMB}, "the normalizer can make a text 1e.12 times as long"),
        ({"normalizer": normalizers.Sequence([normalizers.Replace(Regex("x*"), "b")] * 40)}, "times as long"),
        ({"normalizer": normalizers.Replace(Regex("(?=a)"), "b" * 17)}, "18 times as long"),
        ({"normalizer": normalizers.Sequence([normalizers.Replace(Regex("."), "bb")] * 5)}, "32 times as long"),
        ({"decoder": decoders.Sequence([decoders.Replace("a", "a" * 1000)] * 4)}, "the decoder can make"),
        (
            {
                "post_processor": processors.TemplateProcessing(
                    single=["<s>"] * 99 + ["$A"], special_tokens=[("<s>", 256)]
                )
            },
            "post_processor makes",
        ),
    ],
)
def test_a_tokenizer_that_grows_text_without_bound_is_refused(tmp_path, parts, words):
    with pytest.raises(ConfigError, match=words):
        Tokenizer(folder_with(tmp_path, **parts))


@pytest.mark.parametrize(
    "normalizer",
    [
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " "), normalizers.Lowercase()]),
        normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD()]),
        normalizers.Sequence([normalizers.Replace(Regex(r"\s+"), " ")] * 6),
        normalizers.Replace("\t", "    "),
    ],
)
def test_tokenizers_of_real_models_are_accepted(tmp_path, normalizer):
    tokenizer = Tokenizer(folder_with(tmp_path, normalizer=normalizer))
    assert tokenizer.encode("abc")
    assert tokenizer.tokens_beyond("ab " * 200_000, 1000) > 1000


def test_deeply_nested_json_gives_one_line_and_no_traceback(tmp_path):
    (tmp_path / "config.json").write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(ConfigError, match="nested too deeply"):
        read_json(tmp_path / "config.json")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match="nested too deeply"):
        find_model_folder(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(ConfigError, match="cannot be read"):
        Tokenizer(str(tmp_path))
