"""The tokens of tokenizer.json that are found in a text as a whole, before anything is divided or merged."""

from typing import Any

from .vocabulary import Kind, Vocabulary

ADDED = (Kind.CONTROL, Kind.USER_DEFINED, Kind.UNKNOWN)


def added_tokens(vocabulary: Vocabulary) -> list[dict[str, Any]]:
    return [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != Kind.USER_DEFINED,
        }
        for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
        if token and kind in ADDED
    ]
