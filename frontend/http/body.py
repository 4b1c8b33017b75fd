"""Request bodies: read within a limit, decoded strictly, and refused in words that name the field and its value."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from .errors import HttpError

MAX_BODY_BYTES = 4 << 20

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


async def read_body(receive: Receive, declared_length: str | None) -> bytes:
    """The whole body. HttpError 413 as soon as it is too long, by its own word or by what has come."""
    if declared_length is not None and declared_length.isdecimal() and int(declared_length) > MAX_BODY_BYTES:
        raise _too_long(int(declared_length))
    parts, length = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise HttpError(400, "The connection ended before the body did.")
        parts.append(message.get("body", b""))
        length += len(parts[-1])
        if length > MAX_BODY_BYTES:
            raise _too_long(length)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_long(length: int) -> HttpError:
    return HttpError(413, f"The body has {length} bytes or more; at most {MAX_BODY_BYTES} are accepted.")
