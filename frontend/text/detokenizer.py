"""Turns token ids into text incrementally: never half a character, and the pieces join to the text of the whole."""

import codecs
from collections.abc import Sequence

from .tokenizer import Tokenizer

_decoder_class = codecs.getincrementaldecoder("utf-8")
_MAX_HALF_CHARACTER_BYTES = 3


class Detokenizer:
    """One sequence's output. `prompt_token_ids` matter only where the prompt ends within a character.

    `shown`: special tokens that are not skipped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        shown: frozenset[int] = frozenset(),
    ):
        self._bytes_of = tokenizer.token_bytes
        self._hidden = tokenizer.special_token_ids - shown if skip_special_tokens else frozenset()
        self._decoder = _decoder_class("replace")
        tail = b"".join(
            self._bytes_of(token)
            for token in prompt_token_ids[-_MAX_HALF_CHARACTER_BYTES:]
            if token not in self._hidden
        )
        self._decoder.decode(tail[-_MAX_HALF_CHARACTER_BYTES:])  # leaves only the unfinished character behind

    def push(self, token_id: int) -> str:
        """The characters that this token completes."""
        if token_id in self._hidden:
            return ""
        return self._decoder.decode(self._bytes_of(token_id))

    def finish(self) -> str:
        """The rest at the end: U+FFFD for an incomplete character, else nothing."""
        return self._decoder.decode(b"", True)
