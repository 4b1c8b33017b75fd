"""The texts of `choice` that `bad_words` leaves."""

from collections.abc import Sequence

import msgspec

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.structured_outputs import StructuredOutputsParams

from ..text.tokenizer import spellings


def without_bad_words(form: StructuredOutputsParams, words: Sequence[str]) -> StructuredOutputsParams:
    """The form without choices that contain bad words: an output could begin one, and no token would continue it.

    Raises InvalidRequest if no choice is left.
    """
    if form.choice is None or not words:
        return form
    bad = {spelling for word in words for spelling in spellings(word) if spelling}
    left = tuple(text for text in form.choice if not any(spelling in text for spelling in bad))
    if not left:
        raise InvalidRequest("bad_words forbids every choice of structured_outputs; leave one of them out", "bad_words")
    return msgspec.structs.replace(form, choice=left)
