"""tokenizer.json of a WordPiece tokenizer (`tokenizer.ggml.model` bert).

A file marks the beginning of a word by `▁` where BERT's vocabulary marks its continuation by `##`.
"""

import string
from typing import Any

from .vocabulary import PREFIX, Kind, Vocabulary

BEGINNING, CONTINUATION = "▁", "##"
MAX_WORD_CHARS = 100  # a longer word is unknown


def spelled(token: str, kind: Kind) -> str:
    """A token of the file as BERT's vocabulary has it. Older files have tokens like [unused0] unchanged."""
    if kind == Kind.CONTROL or (len(token) > 2 and token[0] == "[" and token[-1] == "]"):
        return token
    return token[1:] if token[0] == BEGINNING and len(token) > 1 else CONTINUATION + token


def word_piece(vocabulary: Vocabulary, unknown: str) -> dict[str, Any]:
    """The parts of tokenizer.json that make tokens of a text; `vocabulary`: with tokens as BERT has them."""
    lowercases = _lowercases(vocabulary)
    key = f"{PREFIX}normalizer.strip_accents"
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": vocabulary.metadata.truth(key) if key in vocabulary.metadata else None,
            "lowercase": lowercases,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": CONTINUATION, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": CONTINUATION,
            "max_input_chars_per_word": MAX_WORD_CHARS,
            "vocab": {token: index for index, token in enumerate(vocabulary.tokens)},
        },
    }


def _lowercases(vocabulary: Vocabulary) -> bool:
    """What the file says, or else whether the vocabulary lacks capital letters: older files do not say it."""
    has_capitals = set(string.ascii_uppercase) <= set(vocabulary.tokens)
    return vocabulary.metadata.truth(f"{PREFIX}normalizer.lowercase", not has_capitals)
