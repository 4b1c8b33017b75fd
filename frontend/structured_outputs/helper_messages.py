"""The messages between a frontend and the process that compiles grammars."""

from typing import Protocol

import msgspec


class AddedTokens(msgspec.Struct):
    """The first frame: the ids of the tokenizer's added tokens by text; a grammar may name them."""

    special: dict[str, int] = {}  # text never becomes these tokens
    plain: dict[str, int] = {}  # text may become these tokens


class _Tokenizer(Protocol):
    def added_token_ids(self, *, special: bool) -> dict[str, int]: ...


def added_tokens(tokenizer: _Tokenizer) -> AddedTokens:
    return AddedTokens(tokenizer.added_token_ids(special=True), tokenizer.added_token_ids(special=False))


class Compiled(msgspec.Struct, omit_defaults=True):
    """The answer to a StructuredOutputsParams: the grammar's source, or why there is none."""

    source: str = ""
    warnings: list[str] = []
    refusal: str = ""
