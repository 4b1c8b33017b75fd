"""A tokenizer from a GGUF file makes the same tokens of any text as the one that was written to it."""

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from paged_serve.frontend.gguf.pre_tokenizers import PRE_TOKENIZERS
from paged_serve.frontend.gguf.tokenizer_files import text_files
from paged_serve.frontend.gguf.vocabulary import MAX_TOKEN_CHARS
from paged_serve.frontend.text.tokenizer import Tokenizer
from paged_serve.protocol.errors import ConfigError

from .gguf_models import model_of

LINE = "the cat's house isn't 12345 3.14 naïve Straße İstanbul 東京 は 你好 e\u0301 ▁ <0x41> \u00a0 \u200b ﬁ don'T"
WORDS = [*LINE.split(" "), "😀👩\u200d👩\u200d👧"]
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", ""]
TEXT = " ".join(WORDS) * 3 + "\n\n    def f(x):\n\treturn x + 1  # 100%\r\n"
SPECIALS = ["<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "<tool>"]


def texts(seed: int, count: int = 60) -> list[str]:
    rng = random.Random(seed)
    found = [TEXT, "", " ", "  ", *SPECIALS]
    for _ in range(count):
        parts = [rng.choice(rng.choice((WORDS, SPACES, SPACES, SPECIALS))) for _ in range(rng.randint(1, 20))]
        found.append("".join(parts))
        found.append("".join(chr(rng.choice((rng.randint(32, 126), rng.randint(160, 0x2FFF)))) for _ in range(20)))
    return found


def trained(pre: str) -> tokenizers.Tokenizer:
    """A byte-level tokenizer with the pre-tokenizer of the name, trained on the words above."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=PRE_TOKENIZERS[pre].ignores_merges))
    own = {"pre_tokenizer": PRE_TOKENIZERS[pre].pre_tokenizer(), "normalizer": PRE_TOKENIZERS[pre].normalizer()}
    made = tokenizers.Tokenizer.from_str(json.dumps(json.loads(made.to_str()) | own))
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [TEXT], tokenizers.trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    made.add_special_tokens([tokenizers.AddedToken(text, normalized=False) for text in SPECIALS[:2]])
    made.add_tokens([tokenizers.AddedToken("<tool>", normalized=False)])
    return made


def keys_of(made: tokenizers.Tokenizer, **more: Any) -> dict[str, Any]:
    """The metadata that llama.cpp's converter writes for a byte-level tokenizer."""
    parts = json.loads(made.to_str())["model"]
    added = made.get_added_tokens_decoder()
    size = made.get_vocab_size()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [made.id_to_token(index) for index in range(size)],
        "tokenizer.ggml.token_type": [
            (3 if added[index].special else 4) if index in added else 1 for index in range(size)
        ],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in parts["merges"]],
        "tokenizer.ggml.eos_token_id": made.token_to_id("<|im_end|>"),
        **more,
    }


def loaded(keys: dict[str, Any], tmp_path: Path, architecture: str = "llama", num_rows: int = 1 << 20) -> Tokenizer:
    for name, contents in text_files(model_of(keys, architecture), num_rows, has_tokenizer=True).items():
        (tmp_path / name).write_text(contents if isinstance(contents, str) else json.dumps(contents))
    return Tokenizer(str(tmp_path))


def end_tokens(folder: Path) -> list[int]:
    return json.loads((folder / "generation_config.json").read_text())["eos_token_id"]


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_a_byte_level_tokenizer_makes_the_same_tokens(pre, tmp_path):
    made = trained(pre)
    found = loaded(keys_of(made, **{"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": False}), tmp_path)
    for text in texts(1):
        expected = made.encode(text)
        assert found.encode(text) == expected.ids, text
        assert found.decode(expected.ids, False) == made.decode(expected.ids, skip_special_tokens=False)
    assert found.special_token_ids == {made.token_to_id(text) for text in SPECIALS[:2]}
    assert end_tokens(tmp_path) == [made.token_to_id("<|im_end|>")]


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("llama-bpe", "I'LL pay 12345 now", ["I", "'LL", " pay", " ", "123", "45", " now"]),
        ("qwen2", "I'LL pay 12345", ["I", "'LL", " pay", " ", "1", "2", "3", "4", "5"]),
        ("gpt-2", "I'll pay 12345", ["I", "'ll", " pay", " 12345"]),
        ("olmo", "I'll pay 12345", ["I", "'ll", " pay", " 12345"]),
        ("refact", "pay 12", ["pay", " ", "1", "2"]),
        ("tekken", "camelCase 12", ["camel", "Case", " ", "1", "2"]),
        ("gpt-4o", "camelCase's 1234", ["camel", "Case's", " ", "123", "4"]),
        ("deepseek-llm", "It's 123東京abc,", ["It", "'", "s", " ", "1", "2", "3", "東京", "abc", ","]),
        ("deepseek-coder", "naïve 12\n\n", ["naïve", " ", "1", "2", "\n", "\n"]),
        ("deepseek-v3", "It's 12345 東京abc.", ["It", "'s", " ", "123", "45", " ", "東京", "abc", "."]),
        ("kimi-k2", "It's 12345東京abc", ["It's", " ", "123", "45", "東京", "abc"]),
        ("bloom", "It's 123, don't", ["It's", " 123", ",", " don't"]),
        ("seed-coder", "x12 !\n", ["x", "1", "2", " !", "\n"]),
        ("glm4", "x1234 !\n", ["x", "123", "4", " !\n"]),
        ("command-r", "x12 !\n", ["x", "1", "2", " !", "\n"]),
        ("falcon", "It's 12345 ok?! $5", ["It", "'", "s", " ", "123", "45", " ok", "?!", " ", "$", "5"]),
        ("qwen35", "xe\u0301t 12", ["xe\u0301t", " ", "1", "2"]),
        ("qwen2", "xe\u0301t", ["xe", "\u0301t"]),
        ("cohere2moe", "it's 1234567.", ["it's", " ", "1", "234", "567", "."]),
        ("exaone-moe", "we do it 12/", ["we do it", " ", "1", "2", "/"]),
        ("jais-2", "a       b1234", ["a", "    ", "  ", " b", "123", "4"]),
        ("minicpm5", "x12345 !", ["x", "123", "45", " !"]),
        ("laguna", "x 1 \n\ny", ["x", " ", "1", " ", "\n\n", "y"]),
        ("ufakzeka", "Ali'den 12", ["Ali", "'den", " ", "1", "2"]),
        ("youtu", "東京，한국camelCase12", ["東京", "，", "한국", "camel", "Case", "1", "2"]),
        ("bailingmoe2", "It's 12 \n\n", ["It", "'s", " ", "1", "2", " \n\n"]),
        ("spark2_5", "It's 12 !\n\n", ["It", "'s", " ", "1", "2", " !", "\n", "\n"]),
        ("afmoe", "1234567 東京ไทย½cup", ["1", "234", "567", " ", "東京", "ไทย", "½cup"]),
        ("superbpe", "it is 1234567.", ["it is ", "1", "234", "567", "."]),
        ("viking", "ok 12, yes", ["ok", " ", "1", "2", ",", " yes"]),
        ("mellum2", "x12 !", ["x", "1", "2", " !"]),
    ],
)
def test_texts_are_divided_as_the_published_tokenizers_divide_them(pre, text, words):
    own = {"pre_tokenizer": PRE_TOKENIZERS[pre].pre_tokenizer()}
    empty = json.loads(tokenizers.Tokenizer(tokenizers.models.BPE()).to_str())
    divided = tokenizers.Tokenizer.from_str(json.dumps(empty | own)).pre_tokenizer.pre_tokenize_str(text)
    ends = [end for _, (_, end) in divided]
    assert [text[start:end] for start, end in pairwise([0, *ends])] == words


def sentence_piece_keys(**more: Any) -> dict[str, Any]:
    """A vocabulary in the form of Llama 2: three control tokens, 256 bytes, pieces with scores, single characters."""
    pieces = ["▁t", "he", "▁the", "in", "▁in", "▁c", "at", "▁cat", "ca", "▁▁", "▁▁▁▁", "'s", "th", "is", "▁is", "東京"]
    characters = sorted(set("".join(WORDS)) - {"😀"} | {"▁", "\n"} | set("".join(pieces)))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *characters, "<tool>"]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(pieces) + len(characters)), 4]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(pieces))] + [-1e3 - i for i in range(len(characters))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [*scores, 0.0],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **more,
    }


def published(keys: dict[str, Any], *, prefixes: bool) -> tokenizers.Tokenizer:
    """The same vocabulary as transformers converts SentencePiece models, in the steps of Llama 2 or of Gemma."""
    from transformers.convert_slow_tokenizer import generate_merges

    tokens = keys["tokenizer.ggml.tokens"]
    ids = {token: index for index, token in enumerate(tokens)}
    scores = dict(zip(tokens, keys["tokenizer.ggml.scores"], strict=True))
    merges = generate_merges(ids, scores)
    model = tokenizers.models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    made = tokenizers.Tokenizer(model)
    normalizers, decoders = tokenizers.normalizers, tokenizers.decoders
    first = [normalizers.Prepend("▁")] if prefixes else []
    made.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", "▁")])
    last = [decoders.Strip(" ", 1, 0)] if prefixes else []
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *last])
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    made.add_special_tokens([tokenizers.AddedToken(text, normalized=False) for text in ("<unk>", "<s>", "</s>")])
    made.add_tokens([tokenizers.AddedToken("<tool>", normalized=False)])
    return made


@pytest.mark.parametrize("prefixes", [True, False])
def test_a_sentence_piece_tokenizer_makes_the_same_tokens(prefixes, tmp_path):
    keys = sentence_piece_keys(**{"tokenizer.ggml.add_space_prefix": prefixes})
    made, found = published(keys, prefixes=prefixes), loaded(keys, tmp_path)
    for text in texts(2):
        expected = made.encode(text)
        assert found.encode(text) == expected.ids, text
        assert found.encode(text, add_special_tokens=False) == made.encode(text, add_special_tokens=False).ids
        assert found.decode(expected.ids) == made.decode(expected.ids)
    assert "".join(found.token_text(token) for token in found.encode("the cat", add_special_tokens=False)).strip()


def test_gemma_4s_tokenizer_has_merges_and_no_space_before_a_text(tmp_path):
    from transformers.convert_slow_tokenizer import generate_merges

    keys = sentence_piece_keys(**{"tokenizer.ggml.model": "gemma4"})
    made, tokens = published(keys, prefixes=False), keys["tokenizer.ggml.tokens"]
    scores = dict(zip(tokens, keys.pop("tokenizer.ggml.scores"), strict=True))
    merges = generate_merges({token: index for index, token in enumerate(tokens)}, scores)
    keys["tokenizer.ggml.token_type"][0] = 3  # its files have <unk> as a control token
    found = loaded(keys | {"tokenizer.ggml.merges": [" ".join(merge) for merge in merges]}, tmp_path, "gemma4")
    for text in texts(3):
        assert found.encode(text) == made.encode(text).ids, text
    with pytest.raises(ConfigError, match=r"its metadata has no tokenizer\.ggml\.merges"):
        loaded(keys, tmp_path, "gemma4")


def test_gemmas_tokens_of_spaces_are_merged_though_the_file_has_them_with_spaces(tmp_path):
    keys = sentence_piece_keys(**{"tokenizer.ggml.add_space_prefix": False})
    at = keys["tokenizer.ggml.tokens"].index("▁▁")
    keys["tokenizer.ggml.tokens"][at] = "  "
    keys["tokenizer.ggml.token_type"][at] = 4
    found = loaded(keys, tmp_path, "gemma2")
    assert found.encode("a  b", add_special_tokens=False)[1] == at
    assert found.decode([at]) == "  "


def test_phi_3_removes_spaces_after_its_special_tokens(tmp_path):
    keys = sentence_piece_keys()
    keys["tokenizer.ggml.tokens"][-1], keys["tokenizer.ggml.token_type"][-1] = "<|end|>", 3
    keys["tokenizer.ggml.token_type"][2] = 4
    found = loaded(keys, tmp_path, "phi3")
    assert found.encode("<|end|>  the") == found.encode("<|end|>the")
    assert found.encode("<s>  the") != found.encode("<s>the")
    assert found.encode("</s>  the") == found.encode("</s>the"), "a user-defined token of its files"
    assert end_tokens(tmp_path) == [2, len(keys["tokenizer.ggml.tokens"]) - 1]  # <|end|> ends answers too


def test_gpt_oss_ends_at_a_call_and_an_answer_but_not_at_the_end_of_its_reasoning(tmp_path):
    made = trained("gpt-4o")
    tags = ["<|return|>", "<|start|>", "<|end|>", "<|message|>", "<|call|>"]
    made.add_special_tokens([tokenizers.AddedToken(text, normalized=False) for text in tags])
    ends = [made.token_to_id(text) for text in ("<|return|>", "<|im_end|>", "<|call|>")]
    keys = keys_of(made, **{"tokenizer.ggml.pre": "gpt-4o", "tokenizer.ggml.eos_token_id": ends[0]})
    loaded(keys, tmp_path, "gpt-oss")
    assert end_tokens(tmp_path) == ends


@pytest.mark.parametrize("adds", [{}, {"bos": False}, {"eos": True}])
def test_special_tokens_are_added_as_the_file_says(adds, tmp_path):
    keys = sentence_piece_keys(**{f"tokenizer.ggml.add_{name}_token": value for name, value in adds.items()})
    tokens = loaded(keys, tmp_path).encode("the cat")
    assert (tokens[0] == 1, tokens[-1] == 2) == (adds.get("bos", True), adds.get("eos", False))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, "supported: 'gpt2', 'llama', 'gemma4', 'bert', 't5'"),
        ({"tokenizer.ggml.pre": "unheard-of"}, "is 'unheard-of'; supported: llama-bpe"),
        ({"tokenizer.ggml.pre": None}, "is 'absent'; supported:"),
        ({"tokenizer.ggml.tokens": None}, "its metadata has no tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.tokens": ["a", "b", "a"]}, "tokens 0 and 2 are both 'a'"),
        ({"tokenizer.ggml.tokens": ["a", "x" * (MAX_TOKEN_CHARS + 1)]}, "up to 1025 characters"),
        ({"tokenizer.ggml.tokens": ["a"] * 1000}, "1000 tokens, but an embedding of 500 rows"),
        ({"tokenizer.ggml.tokens": ["a", 1]}, "must be a list of strings"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "entries in tokenizer.ggml.token_type"),
        ({"tokenizer.ggml.token_type": [1, 1, 9], "tokenizer.ggml.tokens": ["a", "b", "c"]}, "token_type holds 9"),
        ({"tokenizer.ggml.merges": ["q zz"]}, "its merge 0, 'q zz', is not of two tokens that make one"),
        ({"tokenizer.ggml.eos_token_id": 7000}, "eos_token_id=7000 is not one of its"),
        ({"tokenizer.ggml.add_bos_token": True}, "adds a bos token, but has no"),
        ({"tokenizer.ggml.add_bos_token": 1}, "add_bos_token=1 must be true or false"),
    ],
)
def test_a_vocabulary_that_cannot_be_used_is_refused_by_name(change, message, tmp_path):
    keys = keys_of(trained("qwen2"), **{"tokenizer.ggml.pre": "qwen2"})
    if "tokenizer.ggml.tokens" in change and "tokenizer.ggml.token_type" not in change:
        keys.pop("tokenizer.ggml.token_type")
    keys = {key: value for key, value in (keys | change).items() if value is not None}
    with pytest.raises(ConfigError, match="cannot be served") as refusal:
        loaded(keys, tmp_path, num_rows=500)
    assert message in str(refusal.value)


def test_two_tokens_of_one_text_matter_only_to_the_files_own_tokenizer():
    keys = sentence_piece_keys()
    keys["tokenizer.ggml.tokens"][-1] = "the"
    keys["tokenizer.ggml.tokens"][-2] = "the"
    assert text_files(model_of(keys), 500, has_tokenizer=False)["generation_config.json"] == {"eos_token_id": [2]}
    with pytest.raises(ConfigError, match=r"are both 'the'\. Give the model's own tokenizer with --tokenizer FOLDER"):
        text_files(model_of(keys), 500, has_tokenizer=True)
