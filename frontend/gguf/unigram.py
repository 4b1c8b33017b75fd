"""tokenizer.json of a Unigram tokenizer (`tokenizer.ggml.model` t5), as XLM-R's: the likeliest division into pieces."""

import base64
from typing import Any

from .vocabulary import PREFIX, Vocabulary

SPACE = "▁"
CHARSMAP = f"{PREFIX}precompiled_charsmap"


def unigram(vocabulary: Vocabulary, unknown: int) -> dict[str, Any]:
    """The parts of tokenizer.json that make tokens of a text; `unknown`: a token's id. Raises ConfigError."""
    prefixes = vocabulary.metadata.truth(f"{PREFIX}add_space_prefix", True)
    spaces = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always" if prefixes else "never"}
    return {
        "normalizer": _normalizer(vocabulary),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, spaces | {"split": True}]},
        "decoder": spaces | {"split": True},
        "model": {
            "type": "Unigram",
            "unk_id": unknown,
            "vocab": list(zip(vocabulary.tokens, vocabulary.scores(), strict=False)),
            "byte_fallback": False,
        },
    }


def _normalizer(vocabulary: Vocabulary) -> dict[str, Any] | None:
    """The replacements of characters, in SentencePiece's own form."""
    if CHARSMAP not in vocabulary.metadata:
        return None
    numbers = vocabulary.metadata.numbers(CHARSMAP)
    if not all(each.is_integer() and -128 <= each <= 255 for each in numbers):
        raise vocabulary.metadata.refused(f"{CHARSMAP} must hold bytes")
    data = bytes(int(each) & 0xFF for each in numbers)
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}
