"""The tokenizer's files of an encoder: WordPiece, Unigram or byte-level, with special tokens around a text."""

from dataclasses import replace
from typing import Any

from .added_tokens import added_tokens
from .byte_level import byte_level
from .unigram import unigram
from .vocabulary import PREFIX, Kind, Vocabulary
from .word_piece import spelled, word_piece

WORD_PIECE, UNIGRAM = "bert", "t5"
MASK = "<mask>"
# In tokenizer_config.json: in GGUF, the first that a file has.
SPECIAL = {
    "cls": ("bos", "cls"),
    "sep": ("seperator", "eos"),  # spelled so
    "unk": ("unknown",),
    "pad": ("padding",),
    "mask": ("mask",),
}
USUAL_IDS = {"cls": 101, "sep": 102, "unk": 100, "pad": 0, "mask": 103}  # of BERT, in files that do not say them


def encoder_files(vocabulary: Vocabulary, kind: str, is_doubled: bool | None = None) -> dict[str, Any]:
    """File name -> its JSON; `kind`: WORD_PIECE, UNIGRAM or else byte-level, as RoBERTa's. Raises ConfigError.

    `is_doubled`: whether two texts have two separators between them; None: as the file says.
    """
    special = _special_ids(vocabulary, USUAL_IDS if kind == WORD_PIECE else {})
    match kind:
        case "bert":
            vocabulary = _without_marks(vocabulary)
            parts = word_piece(vocabulary, vocabulary.tokens[special["unk"]])
        case "t5":
            vocabulary = _with_mask(vocabulary, special.get("mask"))
            parts = unigram(vocabulary, special["unk"])
        case _:
            parts = byte_level(vocabulary)
    vocabulary.check_distinct()
    added = added_tokens(vocabulary)
    for entry in added:  # XLM-R's and RoBERTa's
        entry["lstrip"] = entry["content"] == MASK
    around = _around(vocabulary, special, is_doubled, is_pair_of_types=kind == WORD_PIECE)
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **parts}
    return {
        "tokenizer.json": {**whole, "post_processor": around},
        "tokenizer_config.json": {f"{name}_token": vocabulary.tokens[index] for name, index in special.items()},
    }


def _special_ids(vocabulary: Vocabulary, usual: dict[str, int]) -> dict[str, int]:
    """ "cls", "sep" and so on -> id. Raises ConfigError if one that every text needs is not in the file."""
    found = {}
    for name, keys in SPECIAL.items():
        ids = [vocabulary.id_of(f"{PREFIX}{key}_token_id") for key in keys]
        known = next((token for token in ids if token is not None), usual.get(name))
        if known is not None and known < len(vocabulary.tokens):
            found[name] = known
        elif name in ("cls", "sep", "unk"):
            raise vocabulary.metadata.refused(f"its metadata has no {PREFIX}{keys[0]}_token_id")
    return found


def _without_marks(vocabulary: Vocabulary) -> Vocabulary:
    both = zip(vocabulary.tokens, vocabulary.kinds, strict=True)
    return replace(vocabulary, tokens=[spelled(token, kind) if token else "" for token, kind in both])


def _with_mask(vocabulary: Vocabulary, mask: int | None) -> Vocabulary:
    """The converter takes XLM-R's mask for an unused token, since the SentencePiece model does not have it."""
    if mask is None:
        return vocabulary
    tokens, kinds = [*vocabulary.tokens], [*vocabulary.kinds]
    tokens[mask], kinds[mask] = MASK, Kind.CONTROL
    return replace(vocabulary, tokens=tokens, kinds=kinds)


def _around(
    vocabulary: Vocabulary, special: dict[str, int], is_doubled: bool | None, *, is_pair_of_types: bool
) -> dict[str, Any]:
    """The post-processor. Two texts have a separator between them in BERT, and two in XLM-R."""
    metadata = vocabulary.metadata
    for name in ("bos", "eos"):
        if not metadata.truth(key := f"{PREFIX}add_{name}_token", True):
            raise metadata.refused(f"{key}=False is not supported for an encoder")
    types = metadata.whole(f"{PREFIX}token_type_count", 2 if is_pair_of_types else 1)
    second = 1 if is_pair_of_types and types > 1 else 0
    if is_doubled is None:
        is_doubled = metadata.truth(f"{PREFIX}add_sep_token", not is_pair_of_types)
    first, last = (vocabulary.tokens[special[name]] for name in ("cls", "sep"))

    def token(content: str, kind: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": content, "type_id": kind}}

    def text(name: str, kind: int) -> list[dict[str, Any]]:
        return [{"Sequence": {"id": name, "type_id": kind}}, token(last, kind)]

    single = [token(first, 0), *text("A", 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, *([token(last, 0)] if is_doubled else []), *text("B", second)],
        "special_tokens": {
            each: {"id": each, "ids": [special[name]], "tokens": [each]}
            for each, name in ((first, "cls"), (last, "sep"))
        },
    }
