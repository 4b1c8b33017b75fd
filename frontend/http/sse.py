"""Server-sent events: what all chunks of an answer share is encoded once."""

from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
_encode = msgspec.json.Encoder().encode


class Frames:
    """The frames of one answer."""

    def __init__(self, answer_id: str, kind: str, created: int, model: str):
        shared = _encode({"id": answer_id, "object": kind, "created": created, "model": model})
        self._head = b"data: " + shared[:-1] + b',"choices":['

    def chunk(self, choice: msgspec.Struct, **more: Any) -> bytes:
        """One choice's news; `more` are further top-level fields."""
        return self._head + _encode(choice) + b"]" + _tail(more)

    def without_choice(self, **more: Any) -> bytes:
        return self._head + b"]" + _tail(more)


def _tail(more: dict[str, Any]) -> bytes:
    return b"," + _encode(more)[1:] + b"\n\n" if more else b"}\n\n"
