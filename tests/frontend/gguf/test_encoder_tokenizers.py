"""A tokenizer of an encoder's GGUF file makes the same tokens of texts and pairs as the folder's own tokenizer."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from paged_serve.frontend.gguf.tokenizer_files import text_files
from paged_serve.frontend.text.tokenizer import Tokenizer
from paged_serve.protocol.errors import ConfigError

from ...gguf_encoders import word_piece_tokenizer
from .gguf_models import model_of
from .test_tokenizers import TEXT, WORDS, texts, trained
from .test_tokenizers import keys_of as byte_level_keys_of

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = {"bos": "<s>", "eos": "</s>", "seperator": "</s>", "unknown": "<unk>", "padding": "<pad>", "mask": "<mask>"}
CAPITALS = [chr(code) for code in range(ord("A"), ord("Z") + 1)]
PIECES = [
    "the",
    "cat",
    "##at",
    "##s",
    "is",
    "##n",
    "ß",
    "stra",
    "##e",
    "##e\u0301",
    "na",
    "##i",
    "##v",
    "東",
    "##▁",
    "▁",
]


def bert(*, lowercases: bool, strips: bool | None = None) -> tokenizers.Tokenizer:
    """A WordPiece tokenizer of a few pieces and all characters, in the form of BERT's tokenizer.json."""
    characters = sorted({each for word in WORDS for each in (word.lower() if lowercases else word)} - {" ", "😀", "▁"})
    pieces = list(dict.fromkeys([*PIECES, *characters, *(f"##{each}" for each in characters), "[unused0]"]))
    pieces += [] if lowercases else [each for each in CAPITALS if each not in pieces]
    ids = {token: index for index, token in enumerate([*SPECIALS, *pieces])}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercases, strip_accents=strips)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.decoder = tokenizers.decoders.WordPiece()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.add_special_tokens(SPECIALS)
    return made


def keys_of(made: tokenizers.Tokenizer, **more: Any) -> dict[str, Any]:
    """The metadata that llama.cpp's converter writes."""
    tokens = [made.id_to_token(index) for index in range(made.get_vocab_size())]
    stored = [token if token in SPECIALS else token[2:] if token.startswith("##") else f"▁{token}" for token in tokens]
    kinds = [3 if token in SPECIALS else 1 for token in tokens]
    own = {"tokens": stored, "token_type": kinds, "normalizer.lowercase": None, "token_type_count": 2, **more}
    keys = word_piece_tokenizer(len(tokens)) | {f"tokenizer.ggml.{key}": value for key, value in own.items()}
    return {key: value for key, value in keys.items() if value is not None}


def loaded(keys: dict[str, Any], folder: Path) -> Tokenizer:
    for name, contents in text_files(model_of(keys, "bert"), 1 << 20, has_tokenizer=True).items():
        (folder / name).write_text(json.dumps(contents))
    return Tokenizer(str(folder))


def assert_same(found: Tokenizer, made: tokenizers.Tokenizer) -> None:
    rng = random.Random(1)
    every = [*texts(3), TEXT.upper(), "x" * 101, "[CLS] the [unused0] [MASK]"]
    for text in every:
        expected = made.encode(text)
        assert found.encode(text) == expected.ids, text
        pair = made.encode(text, second := rng.choice(every))
        assert found.encode_pair(text, second) == (pair.ids, pair.sequence_ids, pair.type_ids)
        assert found.decode(expected.ids) == made.decode(expected.ids)


@pytest.mark.parametrize("lowercases", [True, False])
@pytest.mark.parametrize("is_said", [True, False])
def test_a_word_piece_tokenizer_is_cased_as_the_file_says_or_as_its_vocabulary_is(lowercases, is_said, tmp_path):
    made = bert(lowercases=lowercases)
    said = {"normalizer.lowercase": lowercases} if is_said else {}
    found = loaded(keys_of(made, **said), tmp_path)
    assert_same(found, made)
    assert found.special_tokens == {f"{name.lower().strip('[]')}_token": name for name in SPECIALS}


@pytest.mark.parametrize("strips", [True, False])
def test_accents_are_stripped_as_the_file_says(strips, tmp_path):
    made = bert(lowercases=not strips, strips=strips)
    assert_same(loaded(keys_of(made, **{"normalizer.strip_accents": strips}), tmp_path), made)


def test_older_files_have_unmarked_unused_tokens_and_lack_ids_of_special_ones(tmp_path):
    made = bert(lowercases=True)
    keys = keys_of(made, bos_token_id=None, eos_token_id=None, cls_token_id=2, add_bos_token=None)
    keys["tokenizer.ggml.tokens"][-1] = "[unused0]"
    assert_same(found := loaded(keys, tmp_path), made)
    assert found.decode([len(keys["tokenizer.ggml.tokens"]) - 1]) == "[unused0]"
    tokens = [f"[unused{index}]" for index in range(100)] + SPECIALS[1:] + ["▁the"]
    own = {"tokens": tokens, "token_type": [1] * 100 + [3] * 4 + [1]}
    ids = dict.fromkeys([f"{name}_token_id" for name in ("bos", "eos", "unknown", "seperator", "padding", "mask")])
    assert loaded(keys_of(made, **own, **ids), tmp_path).encode("the a") == [101, 104, 100, 102]


def test_the_second_of_two_texts_has_no_type_of_its_own_in_a_model_of_one_type(tmp_path):
    _, _, types = loaded(keys_of(bert(lowercases=True), token_type_count=1), tmp_path).encode_pair("the", "cat")
    assert set(types) == {0}


def xlm_roberta() -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """A Unigram tokenizer in the steps of XLM-R's tokenizer.json without replacements, and its metadata."""
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=150, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    steps = tokenizers.pre_tokenizers
    made = tokenizers.Tokenizer(tokenizers.models.Unigram())
    made.pre_tokenizer = steps.Sequence([steps.WhitespaceSplit(), steps.Metaspace()])
    made.decoder = tokenizers.decoders.Metaspace()
    made.train_from_iterator([TEXT], trainer)
    made.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True, normalized=False)])
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    pieces = json.loads(made.to_str())["model"]["vocab"]
    keys = {
        "model": "t5",
        "pre": "default",
        "tokens": [*(token for token, _ in pieces), "[PAD250000]"],  # converters lose the mask's name
        "scores": [*(score for _, score in pieces), -10000.0],
        "token_type": [3, 3, 3, 2, *[1] * (len(pieces) - 4), 5],
        "token_type_count": 1,
        "add_space_prefix": True,
        "remove_extra_whitespaces": True,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "unknown_token_id": 3,
        "seperator_token_id": 2,
        "padding_token_id": 1,
        "mask_token_id": len(pieces),
        "add_bos_token": True,
        "add_eos_token": True,
    }
    return made, {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def test_a_unigram_tokenizer_makes_the_same_tokens(tmp_path):
    made, keys = xlm_roberta()
    found = loaded(keys, tmp_path)
    assert_same(found, made)
    assert found.encode("the  <mask>") == made.encode("the  <mask>").ids


def test_a_unigram_tokenizers_replacements_are_those_of_the_file():
    _, keys = xlm_roberta()
    keys["tokenizer.ggml.precompiled_charsmap"] = [0, 1, -1, 255]
    normalizer = text_files(model_of(keys, "bert"), 1 << 20, has_tokenizer=True)["tokenizer.json"]["normalizer"]
    assert normalizer == {"type": "Precompiled", "precompiled_charsmap": "AAH//w=="}


def test_robertas_tokenizer_puts_two_separators_between_texts(tmp_path):
    made = trained("roberta-bpe")
    made.add_special_tokens(["<s>", "</s>", "<unk>", "<pad>"])
    made.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True, normalized=False)])
    ids = {name: made.token_to_id(token) for name, token in ROBERTA.items()}
    made.post_processor = tokenizers.processors.RobertaProcessing(("</s>", ids["eos"]), ("<s>", ids["bos"]))
    more = {f"tokenizer.ggml.{name}_token_id": token for name, token in ids.items()}
    adds = {f"tokenizer.ggml.add_{name}_token": True for name in ("bos", "eos", "sep")}
    found = loaded(byte_level_keys_of(made, **more, **adds, **{"tokenizer.ggml.pre": "roberta-bpe"}), tmp_path)
    assert_same(found, made)
    assert found.encode("the  <mask> cat") == made.encode("the  <mask> cat").ids


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"add_bos_token": False}, "add_bos_token=False is not supported for an encoder"),
        ({"bos_token_id": 9999}, "bos_token_id=9999 is not one of its"),
        ({"tokens": ["▁a", "a", "▁a"], "token_type": [1, 1, 1]}, "tokens 0 and 2 are both 'a'"),
        ({"model": "t5"}, "has no tokenizer.ggml.scores"),
        ({"model": "t5", "scores": [0.0] * 9999, "precompiled_charsmap": [256]}, "charsmap must hold bytes"),
        ({"model": "t5", "unknown_token_id": None}, "has no tokenizer.ggml.unknown_token_id"),
        ({"seperator_token_id": None, "eos_token_id": None}, "has no tokenizer.ggml.seperator_token_id"),
    ],
)
def test_a_vocabulary_that_cannot_be_used_is_refused_by_name(change, message, tmp_path):
    if "tokens" in change:
        change |= {f"{each}_token_id": 0 for each in ("bos", "eos", "unknown", "seperator", "padding", "mask")}
    with pytest.raises(ConfigError, match="cannot be served") as refusal:
        loaded(keys_of(bert(lowercases=True), **change), tmp_path)
    assert message in str(refusal.value)


def test_modern_bert_has_one_separator_between_texts_whatever_the_file_says(tmp_path):
    made = trained("modern-bert")
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|im_start|> $A <|im_end|>",
        pair="<|im_start|> $A <|im_end|> $B <|im_end|>",
        special_tokens=[(each, made.token_to_id(each)) for each in ("<|im_start|>", "<|im_end|>")],
    )
    ids = {
        name: made.token_to_id(f"<|im_{end}|>") for name, end in (("bos", "start"), ("eos", "end"), ("unknown", "end"))
    }
    own = {f"tokenizer.ggml.{name}_token_id": index for name, index in ids.items()}
    own |= {"tokenizer.ggml.pre": "modern-bert", "tokenizer.ggml.add_sep_token": True}
    for name, contents in text_files(
        model_of(byte_level_keys_of(made, **own), "modern-bert"), 1 << 20, has_tokenizer=True
    ).items():
        (tmp_path / name).write_text(json.dumps(contents))
    assert_same(Tokenizer(str(tmp_path)), made)
