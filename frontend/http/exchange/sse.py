"""Server-sent events. The part that all chunks of an answer share is encoded once."""

from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The fields that all parts of an answer share."""

    answer_id: str
    model: str
    warnings: list[str]
    created: int  # seconds since 1970


DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
_encode = msgspec.json.Encoder().encode


class Frames:
    """Makes the frames of one answer."""

    def __init__(self, head: AnswerHead, kind: str):
        shared = _encode({"id": head.answer_id, "object": kind, "created": head.created, "model": head.model})
        self._head = b"data: " + shared[:-1] + b',"choices":['

    def chunk(self, choice: msgspec.Struct, **more: Any) -> bytes:
        """The chunk of one choice; `more` are further top-level fields."""
        return self._head + _encode(choice) + b"]" + _tail(more)

    def without_choice(self, **more: Any) -> bytes:
        return self._head + b"]" + _tail(more)


def numbered(event: bytes, answer_id: str, number: int) -> bytes:
    """`event` with the id that a client sends to resume after it."""
    return b"id: %s:%d\n%s" % (answer_id.encode(), number, event)


def _tail(more: dict[str, Any]) -> bytes:
    return b"," + _encode(more)[1:] + b"\n\n" if more else b"}\n\n"
