"""What the interface that a client speaks decides of every exchange: how errors look, and what keeps a stream alive."""

from collections.abc import Callable
from dataclasses import dataclass

from .errors import HttpError, error_body
from .sse import DONE, PING


@dataclass(frozen=True, slots=True)
class WireFormat:
    """`error_body` makes JSON of (error, request id or ""), which stands in a stream behind `error_head`."""

    error_body: Callable[[HttpError, str], bytes]
    error_head: bytes
    stream_end: bytes  # behind a stream's last event
    ping: bytes
    request_id_headers: tuple[bytes, ...] = (b"x-request-id",)

    def error_event(self, error: HttpError, request_id: str) -> bytes:
        """The end of a stream that has begun."""
        return self.error_head + self.error_body(error, request_id) + b"\n\n" + self.stream_end


OPENAI = WireFormat(lambda error, request_id: error_body(error), b"data: ", DONE, PING)
