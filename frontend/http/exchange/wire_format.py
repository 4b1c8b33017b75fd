"""The parts of an exchange that depend on the client's interface: the form of errors, and pings in streams."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from .errors import HttpError, error_body
from .sse import DONE, PING


@dataclass(frozen=True, slots=True)
class WireFormat:
    """`error_body`: (error, request id or "") -> JSON; in a stream it follows `error_head`."""

    error_body: Callable[[HttpError, str], bytes]
    error_head: bytes
    stream_end: bytes  # after a stream's last event
    ping: bytes
    request_id_headers: tuple[bytes, ...] = (b"x-request-id",)

    def error_event(self, error: HttpError, request_id: str) -> bytes:
        """The event that ends a stream with an error."""
        return self.error_head + self.error_body(error, request_id) + b"\n\n" + self.stream_end


OPENAI = WireFormat(lambda error, request_id: error_body(error), b"data: ", DONE, PING)
# Ollama's clients show the value of "error" as it is.
OLLAMA = WireFormat(lambda error, request_id: msgspec.json.encode({"error": error.message}), b"data: ", DONE, PING)
