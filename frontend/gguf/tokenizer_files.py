"""The tokenizer's files of a model folder: tokenizer.json, tokenizer_config.json, generation_config.json, templates."""

import re
from typing import Any

from .added_tokens import added_tokens
from .byte_level import byte_level, pre_tokenizer_of
from .encoder_tokenizer import UNIGRAM, WORD_PIECE, encoder_files
from .model import GgufModel
from .sentence_piece import is_of_spaces, sentence_piece
from .vocabulary import PREFIX, Kind, Vocabulary

TEMPLATE = "tokenizer.chat_template"
_TEMPLATE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
BYTE_LEVEL, SENTENCE_PIECE, GEMMA4 = "gpt2", "llama", "gemma4"
ENCODERS = ("bert", "nomic-bert", "modern-bert")
KINDS = (BYTE_LEVEL, SENTENCE_PIECE, GEMMA4, WORD_PIECE, UNIGRAM)
SAMPLING = {  # in general.sampling: in generation_config.json
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
NOT_STRIPPING = ("<unk>", "<s>", "<|endoftext|>")  # of Phi-3: its other added tokens remove the spaces after them


def text_files(model: GgufModel, num_rows: int, *, has_tokenizer: bool) -> dict[str, Any]:
    """File name -> its JSON or its text; `has_tokenizer`: with the tokenizer's own files. Raises ConfigError."""
    vocabulary = Vocabulary.read(model.metadata, num_rows)
    files = _tokenizer_files(model, vocabulary) if has_tokenizer else {}
    generation = {"eos_token_id": vocabulary.end_ids(), **_sampling(model)}
    return {**files, "generation_config.json": generation, **_templates(model)}


def _tokenizer_files(model: GgufModel, vocabulary: Vocabulary) -> dict[str, Any]:
    kind = model.metadata.text(f"{PREFIX}model")
    if kind in (WORD_PIECE, UNIGRAM) or (kind == BYTE_LEVEL and model.architecture in ENCODERS):
        return encoder_files(vocabulary, kind, is_doubled=False if model.architecture == "modern-bert" else None)
    vocabulary.check_distinct()
    match kind:
        case "gpt2":
            parts, adds_bos = byte_level(vocabulary), pre_tokenizer_of(vocabulary).adds_bos
        case "llama":
            parts, adds_bos = sentence_piece(vocabulary, model.architecture), True
        case "gemma4":  # with a list of merges
            vocabulary.metadata.texts(f"{PREFIX}merges")
            parts, adds_bos = sentence_piece(vocabulary, model.architecture, prefixes=False), True
        case _:
            raise model.refused(
                f"{PREFIX}model is {kind!r}; supported: {', '.join(map(repr, KINDS))}. Give the model's own tokenizer "
                "with --tokenizer FOLDER"
            )
    special = vocabulary.special_ids()
    around = _around(vocabulary, special, adds_bos)
    added = _added_tokens(
        vocabulary, merges_spaces=kind in (SENTENCE_PIECE, GEMMA4), strips=model.architecture == "phi3"
    )
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **parts}
    named = {f"{name}_token": vocabulary.tokens[token] for name, token in special.items()}
    return {
        "tokenizer.json": {**whole, "post_processor": around},
        "tokenizer_config.json": {**named, "add_bos_token": _adds(vocabulary, "bos", adds_bos and "bos" in special)},
    }


def _adds(vocabulary: Vocabulary, name: str, default: bool) -> bool:
    return vocabulary.metadata.truth(f"{PREFIX}add_{name}_token", default)


def _around(vocabulary: Vocabulary, special: dict[str, int], adds_bos: bool) -> dict[str, Any] | None:
    """The post-processor: the special tokens before and after a text."""
    adds = {"bos": _adds(vocabulary, "bos", adds_bos and "bos" in special), "eos": _adds(vocabulary, "eos", False)}
    if missing := [name for name, is_added in adds.items() if is_added and name not in special]:
        raise vocabulary.metadata.refused(f"it adds a {missing[0]} token, but has no {PREFIX}{missing[0]}_token_id")
    texts = {name: vocabulary.tokens[special[name]] for name, is_added in adds.items() if is_added}
    if not texts:
        return None

    def piece(name: str, kind: int) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": texts[name], "type_id": kind}}] if name in texts else []

    def text(name: str, kind: int) -> list[dict[str, Any]]:
        return [*piece("bos", kind), {"Sequence": {"id": name, "type_id": kind}}, *piece("eos", kind)]

    return {
        "type": "TemplateProcessing",
        "single": text("A", 0),
        "pair": [*text("A", 0), *text("B", 1)],
        "special_tokens": {
            token: {"id": token, "ids": [special[name]], "tokens": [token]} for name, token in texts.items()
        },
    }


def _added_tokens(vocabulary: Vocabulary, *, merges_spaces: bool, strips: bool) -> list[dict[str, Any]]:
    """Without those of spaces, which are merged; `strips`: they remove the spaces after them, as Phi-3's do."""
    kinds = vocabulary.kinds
    found = [
        each
        for each in added_tokens(vocabulary)
        if not merges_spaces or not is_of_spaces(each["content"], kinds[each["id"]])
    ]
    for each in found if strips and merges_spaces else ():
        each["rstrip"] = kinds[each["id"]] != Kind.UNKNOWN and each["content"] not in NOT_STRIPPING
    return found


def _sampling(model: GgufModel) -> dict[str, Any]:
    """The recommended sampling parameters of the file."""
    keys = {theirs: f"general.sampling.{ours}" for ours, theirs in SAMPLING.items()}
    found: dict[str, Any] = {name: model.metadata.number(key) for name, key in keys.items() if key in model.metadata}
    if "top_k" in found:
        found["top_k"] = int(found["top_k"])
    return found


def _templates(model: GgufModel) -> dict[str, str]:
    """The chat template and further ones by name."""
    files = {"chat_template.jinja": model.metadata.text(TEMPLATE)} if TEMPLATE in model.metadata else {}
    for key in model.metadata.values:
        name = key.removeprefix(f"{TEMPLATE}.")
        if name != key and _TEMPLATE_NAME.fullmatch(name):
            files[f"additional_chat_templates/{name}.jinja"] = model.metadata.text(key)
    return files
