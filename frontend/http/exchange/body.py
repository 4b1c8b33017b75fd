"""Reads request bodies up to a limit, and decodes them strictly; errors name the field and its value."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from .errors import HttpError

MAX_BODY_BYTES = 4 << 20

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Disconnected(HttpError):
    """The peer closed the connection before its request was complete, so no answer can be sent."""

    def __init__(self) -> None:
        super().__init__(400, "The connection ended before the body did.")


async def read_body(receive: Receive, declared_length: str | None, limit: int = MAX_BODY_BYTES) -> bytes:
    """The whole body. Raises HttpError 413 as soon as the declared or the received length exceeds `limit` bytes."""
    if declared_length is not None and declared_length.isdecimal() and int(declared_length) > limit:
        raise _too_long(int(declared_length), limit)
    parts, length = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        parts.append(message.get("body", b""))
        length += len(parts[-1])
        if length > limit:
            raise _too_long(length, limit)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_long(length: int, limit: int) -> HttpError:
    hint = "" if limit == MAX_BODY_BYTES else " with this --max-buffered-bytes"
    return HttpError(413, f"The body has {length} bytes or more; at most {limit} are accepted{hint}.")
