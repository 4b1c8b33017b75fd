"""HTTP/1.1 by uvicorn and httptools, with limits that they lack: on headers and on the time to send a request."""

from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ...buffer_budget import RETRY_AFTER_S
from ..anthropic.errors import wire_format
from ..exchange.access_log import log_refused
from ..exchange.errors import NO_STORE, Headers, HttpError, retry_after
from ..exchange.exchange import BODY_TAKEN, JSON
from .close_delimited import close_delimited
from .connection_buffers import ConnectionBuffers
from .connection_limit import MAX_REFUSED, ConnectionLimit
from .cut_off import broken_when_cancelled
from .early_answer import closing_early
from .half_closed import HalfClosed
from .other_protocols import RequestParser, head_without_upgrade, other_protocol
from .request_head import fault_of_head, replace_host

MAX_HEADER_BYTES = 32 << 10
MAX_FRAMING_BYTES = 1 << 20  # of a request's chunk lines and trailers: a body may come in chunks of a few bytes
HEADERS_WITHIN_S = 10.0
BODY_WITHIN_S = 60.0  # 4 MB at half a megabit per second
MAX_UNSENT_BYTES = 4 << 10  # of an answer, besides the kernel's buffer; above it the writer waits
LINGER_S = 1.0  # closing while the peer still sends would discard the refusal
PageHeaders = Callable[[str], Headers]  # origin ("": none) -> headers of an answer to a page of this origin


def no_page_headers(_origin: str) -> Headers:
    return []


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection. Refuses large headers with 431, slow requests with 408, malformed ones with 400; then closes.

    One request at a time: data that arrives during an answer is dropped and the connection closes after the answer, so
    that reading continues and notices when the peer has gone.
    """

    _deadline: Any = None
    _framing_bytes = 0  # of the current request, without its body
    _in_head = True  # or between two requests
    _drops_input = False  # incoming data is dropped
    _closes_early = False  # after an answer that does not wait for the body of its request
    _repeats_head = False  # the parser has stopped at an Upgrade header and is going to begin again without it
    _ignores_upgrade = False  # it has; no further request follows

    def __init__(
        self,
        *arguments: Any,
        connection_limit: ConnectionLimit,
        buffers: ConnectionBuffers,
        page_headers: PageHeaders = no_page_headers,
        **options: Any,
    ):
        super().__init__(*arguments, **options)
        self.parser = RequestParser(self, self._without_upgrade)
        self._page_headers = page_headers
        self._connection_limit = connection_limit
        self._buffers = buffers
        self._body_bytes = self._unsent_bytes = 0  # as counted in the buffers
        self._has_place = self._is_refused = False
        self._half_closed: HalfClosed | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(MAX_UNSENT_BYTES)
        if self._connection_limit.is_closed:  # accepted at the last moment: the successor will answer
            transport.abort()
            return
        self._has_place = self._connection_limit.take()
        if self._has_place:
            self._connection_limit.idle(self)
            self._expect(HEADERS_WITHIN_S)
        elif self._connection_limit.num_refused < MAX_REFUSED:
            self._is_refused = True
            self._connection_limit.num_refused += 1
            self._refuse(
                503, f"All {self._connection_limit.limit} connections of this server are busy (--max-connections)."
            )
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        self._hold(0, 0)
        if self._half_closed is not None:
            self._half_closed.stop()
        self._connection_limit.num_refused -= self._is_refused
        if self._has_place:
            self._connection_limit.give_back(self)
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The peer has shut its sending side; a complete request is still answered, unless the peer has gone."""
        if self._drops_input or not self._in_head or not self._is_answering():
            return False
        self._stop_listening()
        self._half_closed = HalfClosed(self.loop, self.transport)
        speaks_1_1 = self.cycle.scope["http_version"] == "1.1"
        self._half_closed.begin(may_send_interim=speaks_1_1 and not self.cycle.response_started)
        return True

    def leave(self) -> None:
        """Close this idle connection in favour of another."""
        self._expect(None)
        self.transport.close()

    @property
    def has_unsent_bytes(self) -> bool:
        """Whether the peer has yet to read a part of an answer."""
        return bool(self.transport.get_write_buffer_size())

    def data_received(self, data: bytes) -> None:
        if not self._drops_input and self._in_head and self._is_answering():
            self._stop_listening()
        if self._drops_input:
            return
        if self._in_head and not self._framing_bytes and (fault := other_protocol(data)):
            self._refuse(400, fault)
            return
        self._framing_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._framing_bytes > MAX_HEADER_BYTES:
            self._refuse_head()
        elif self._framing_bytes > MAX_FRAMING_BYTES:
            self._refuse(400, f"The body's chunks need more than {MAX_FRAMING_BYTES} bytes besides the body.")
        elif self._deadline is None and not self._is_answering():
            self._expect(HEADERS_WITHIN_S)  # line breaks before a request

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[BODY_TAKEN] = self._body_taken  # type: ignore[literal-required]
        self._connection_limit.busy(self)
        if self._is_answering():
            self._stop_listening()
        else:
            self._expect(HEADERS_WITHIN_S)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers are not used
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._drops_input:
            return None
        self._in_head = False
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEADER_BYTES:
            return self._refuse_head()
        if fault := fault_of_head(self.parser.get_http_version(), self.url, self.headers):
            return self._refuse(400, fault)
        if self.parser.should_upgrade() and not self._ignores_upgrade:
            self._repeats_head = True
            return None
        replace_host(self.url, self.headers)
        self.expect_100_continue &= self.parser.get_http_version() == "1.1"  # 1.0 knows no interim responses
        self._expect(BODY_WITHIN_S)
        return super().on_headers_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        app = closing_early(app, cycle, self._is_early)
        app = app if cycle.scope["http_version"] == "1.1" else close_delimited(app, cycle)
        super()._start_asgi_task(cycle, broken_when_cancelled(app, cycle))

    def _is_early(self) -> bool:
        """Whether an answer that begins now ends the connection, as the peer cannot know whether to send the body."""
        cycle = self.cycle
        self._closes_early = not self._in_head and (cycle.waiting_for_100_continue or not cycle.keep_alive)
        return self._closes_early

    def _without_upgrade(self) -> tuple[bytes, Any] | None:
        """The head to parse instead of the one with an Upgrade header, and the parser for it; None if it is refused."""
        if not self._repeats_head:
            return None
        self._repeats_head, self._ignores_upgrade, self._in_head = False, True, True
        method, version = self.parser.get_method(), self.parser.get_http_version()
        self.parser = httptools.HttpRequestParser(self)
        return head_without_upgrade(method, self.url, version, self.headers), self.parser

    def on_body(self, body: bytes) -> None:
        self._framing_bytes -= len(body)
        if self._drops_input or self.cycle.response_complete:  # the body is dropped
            return
        if self._hold(self._body_bytes + len(body), self._unsent_bytes):
            super().on_body(body)
        else:
            self.shed()

    def _body_taken(self) -> None:
        """The application has the whole body and counts its memory from now on."""
        self._hold(0, self._unsent_bytes)

    def pause_writing(self) -> None:
        super().pause_writing()
        if not self._hold(self._body_bytes, self.transport.get_write_buffer_size()):
            self.transport.abort()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._hold(self._body_bytes, 0)

    def shed(self) -> None:
        """Refuse the request or break the answer: there is no memory left for the bytes that this connection holds."""
        if self._unsent_bytes:
            self.transport.abort()
        else:
            headers = retry_after(RETRY_AFTER_S)
            self._refuse(429, "There is no memory left for this request's body; retry in a moment.", headers)

    def _hold(self, body_bytes: int, unsent_bytes: int) -> bool:
        if not self._buffers.hold(self, body_bytes + unsent_bytes):
            return False
        self._body_bytes, self._unsent_bytes = body_bytes, unsent_bytes
        return True

    def on_message_complete(self) -> None:
        if self._drops_input or self._repeats_head:
            return
        self._expect(None)
        self._in_head, self._framing_bytes = True, 0
        super().on_message_complete()
        if self._ignores_upgrade:  # a proxy might forward what follows as another protocol
            self._stop_listening()
        if not self._is_answering():
            self._rest()

    def on_response_complete(self) -> None:
        self._hold(0, self._unsent_bytes)
        super().on_response_complete()
        if self._closes_early:
            self._linger()
        elif self._in_head and not self.transport.is_closing():
            self._rest()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _rest(self) -> None:
        """Become idle between two requests; releases the last one."""
        self.cycle = self.scope = self.headers = None  # type: ignore[assignment]
        self._connection_limit.idle(self)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _stop_listening(self) -> None:
        self._drops_input = True
        self.cycle.keep_alive = False

    def _expect(self, seconds: float | None) -> None:
        """Give the peer `seconds` for the next part of its request; None: nothing is due."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._refuse(408, "The request did not arrive in time.")

    def _refuse_head(self) -> None:
        self._refuse(431, f"The headers have more than {MAX_HEADER_BYTES} bytes.")

    def _path(self) -> str:
        """The path of the current request; "" before its head has arrived."""
        scope: Any = self.scope
        return "" if scope is None else str(scope.get("path", ""))

    def _refuse(self, status: int, message: str, headers: Headers | None = None) -> None:
        if self._drops_input or self.transport.is_closing():
            return None
        if self.cycle is not None and self.cycle.response_complete and not self._in_head:
            return self.transport.close()  # the request has its answer
        self._drops_input = True
        self._expect(None)
        if self._is_answering():
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                return self.transport.close()
        else:
            log_refused(self.client, status, message)
        body = wire_format(self._path(), {}).error_body(HttpError(status, message), "")
        origin = next((value for name, value in self.headers or () if name == b"origin"), b"").decode("latin-1")
        named = [*JSON, NO_STORE, *self._page_headers(origin), (b"connection", b"close"), *(headers or ())]
        named.append((b"content-length", b"%d" % len(body)))
        lines = b"".join(b"%s: %s\r\n" % each for each in named)
        self.transport.write(b"HTTP/1.1 %d Refused\r\n%s\r\n%s" % (status, lines, body))
        return self._linger()

    def _linger(self) -> None:
        """Close the connection once the peer has had time to read the answer; what it still sends is dropped."""
        self._drops_input = True
        self._expect(None)
        if self.cycle is not None:
            self.cycle.waiting_for_100_continue = False  # the peer cannot be asked for the body any more
        self.transport.write_eof()
        self._deadline = self.loop.call_later(LINGER_S, self.transport.close)
