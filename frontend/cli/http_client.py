"""A small HTTP client for the terminal commands: one streamed request at a time, over TCP or a unix socket.

A stream whose connection breaks resumes over a new one, after the last event received.
"""

import http.client
import json
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from paged_serve.protocol.errors import ConfigError, EngineDead, InvalidRequest, PagedServeError

MAX_TRIES = 10  # in a row without an event
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0  # before a try; each pause doubles the last
LONGEST_BUSY_PAUSE_S = 60.0  # of those that a busy server asks for
GOODBYE_WITHIN_S = 2.0


class _Unreachable(EngineDead):
    """The connection could not be made."""


class _BrokenOff(EngineDead):
    """The connection was made and broke."""


class _TryLater(InvalidRequest):
    """The server answered 429 or 503."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


@dataclass(slots=True)
class _Progress:
    """How far a stream has come. A stream can resume only if the server gives its events ids."""

    key: str = field(default_factory=lambda: secrets.token_hex(16))
    event_id: str = ""
    begun: bool = False
    complete: bool = False
    tries: int = 0

    def headers(self) -> dict[str, str]:
        return {"Idempotency-Key": self.key} | ({"Last-Event-ID": self.event_id} if self.event_id else {})

    def note(self, event_id: str) -> None:
        self.event_id, self.begun, self.tries = event_id, True, 0

    def pause(self, error: PagedServeError) -> None:
        """Sleep before another try; raises `error` when another try is pointless."""
        is_first = not self.begun and not self.tries
        if is_first and not isinstance(error, _BrokenOff):
            raise error
        if self.tries == MAX_TRIES or (self.begun and not self.event_id):
            raise error
        time.sleep(min(FIRST_PAUSE_S * 2**self.tries, LONGEST_PAUSE_S))
        self.tries += 1


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float | None):
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class HttpClient:
    """`url` is http://host:port[/root][/v1] or unix:/path."""

    def __init__(self, url: str, api_key: str = ""):
        parts = _parts(url)
        if parts is None:
            raise ConfigError(f"{url} is not an address; give one like http://127.0.0.1:8000")
        self._url = url
        self._parts = parts
        self._connections: set[http.client.HTTPConnection] = set()
        self._closed = threading.Event()
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def close(self) -> None:
        """End all requests, those of other threads with EngineDead."""
        self._closed.set()
        for connection in list(self._connections):
            with suppress(OSError, AttributeError):  # it is not connected, or no longer
                connection.sock.shutdown(socket.SHUT_RDWR)

    def models(self) -> list[str]:
        """The model names that requests may use, at least one. Raises InvalidRequest when it is another server."""
        with self._response("GET", "/v1/models", None) as response:
            try:
                names = [model.id for model in msgspec.json.decode(response.read(), type=_Models).data]
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise InvalidRequest(f"{self._url} does not list its models at /v1/models: {error}") from None
        if not names:
            raise InvalidRequest(f"{self._url} has no model")
        return names

    def is_up(self, path: str) -> bool:
        """Whether GET `path` is answered with 200 now."""
        try:
            with self._response("GET", path, None):
                return True
        except PagedServeError:
            return False

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        """The body of an answer. Raises InvalidRequest if it is a refusal, EngineDead if there is none."""
        with self._response(method, path, body) as response:
            return response.read()

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of a streamed answer, over as many connections as needed; closing the iterator aborts it."""
        progress = _Progress()
        try:
            while not progress.complete:
                try:
                    yield from self._events(path, {**body, "stream": True}, progress)
                except (_Unreachable, _BrokenOff, _TryLater) as error:
                    progress.pause(error)
        finally:
            if progress.event_id and not progress.complete:
                self._delete_stream(progress.event_id.partition(":")[0])

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, str, bytes]:
        """(status, request id, body) of an answer that is not a stream, whatever its status.

        The request is repeated when the connection breaks or the server is too busy, as often as the server says when
        to come back; its idempotency key makes the repeats one request.
        """
        progress = _Progress()
        while True:
            try:
                with self._any_response("POST", path, body, progress.headers()) as response:
                    answer = response.status, response.headers.get("X-Request-Id", ""), response.read()
                    retry_after_s = _retry_after_s(response)
                if answer[0] not in (429, 503):
                    return answer
                if retry_after_s is not None:
                    progress.tries = 0
                    self._closed.wait(retry_after_s)
                    continue
                if progress.tries == MAX_TRIES:
                    return answer
                error: PagedServeError = _BrokenOff(f"{self._url} is too busy")
            except (_Unreachable, _BrokenOff) as broken:
                error = _BrokenOff(str(broken))  # a restarting server comes back
            if self._closed.is_set():
                raise error
            progress.pause(error)

    def _events(self, path: str, body: dict[str, Any], progress: "_Progress") -> Iterator[dict[str, Any]]:
        """The events of one connection."""
        with self._response("POST", path, body, progress.headers()) as response:
            event_id = ""
            for line in response:
                if not line.endswith(b"\n"):
                    break
                name, _, value = line.decode().rstrip("\r\n").partition(": ")
                if name == "id":
                    event_id = value
                elif name == "data" and value == "[DONE]":
                    progress.complete = True
                    return
                elif name == "data":
                    event = _event(value)
                    progress.note(event_id)
                    yield event
        raise _BrokenOff(f"{self._url} broke off in the middle of an answer")

    def _delete_stream(self, stream_id: str) -> None:
        """Abort the stream; otherwise the server would keep it for a while."""
        with suppress(PagedServeError), self._response("DELETE", f"/v1/streams/{stream_id}", None):
            pass

    @contextmanager
    def _response(
        self, method: str, path: str, body: dict[str, Any] | None, headers: dict[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        with self._any_response(method, path, body, headers) as response:
            if response.status not in (200, 204):
                kind = _TryLater if response.status in (429, 503) else InvalidRequest
                raise kind(f"the server answers {response.status}: {_message(response.read())}")
            yield response

    @contextmanager
    def _any_response(
        self, method: str, path: str, body: dict[str, Any] | None, headers: dict[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """The response, whatever its status."""
        connection = self._connection(GOODBYE_WITHIN_S if method == "DELETE" else None)
        connected = False
        try:
            connection.connect()
            self._connections.add(connection)
            if self._closed.is_set():
                raise EngineDead("the client is closed")
            connected = True
            root = "" if self._parts.scheme == "unix" else self._parts.path.rstrip("/").removesuffix("/v1")
            text = None if body is None else json.dumps(body)
            connection.request(method, root + path, text, {**self._headers, **(headers or {})})
            with connection.getresponse() as response:
                yield response
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise (_BrokenOff if connected else _Unreachable)(f"no answer from {self._url}: {reason}") from None
        finally:
            self._connections.discard(connection)
            connection.close()

    def _connection(self, timeout_s: float | None) -> http.client.HTTPConnection:
        if self._parts.scheme == "unix":
            return _UnixConnection(self._parts.path, timeout_s)
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(self._parts.netloc, timeout=timeout_s)
        return http.client.HTTPConnection(self._parts.netloc, timeout=timeout_s)


def _parts(url: str) -> SplitResult | None:
    """The parts of an address; None when it cannot be one. The path of a unix socket may have any character."""
    if url.startswith("unix:"):
        return SplitResult("unix", "", url.removeprefix("unix:").removeprefix("//"), "", "")
    try:
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")
        is_one = parts.port != 0 and parts.username is None and all("!" <= char <= "~" for char in parts.path)
    except ValueError:  # a port that is no number, an IPv6 address without its bracket, an empty label
        return None
    return parts if is_one and parts.scheme in ("http", "https") and parts.hostname else None


def _retry_after_s(response: http.client.HTTPResponse) -> float | None:
    """The pause that the answer asks for; None when it names none, or a date."""
    for name, seconds in (("Retry-After-Ms", 0.001), ("Retry-After", 1.0)):
        value = response.headers.get(name, "")
        if re.fullmatch(r"\d{1,9}(\.\d+)?", value):
            return min(max(float(value) * seconds, FIRST_PAUSE_S), LONGEST_BUSY_PAUSE_S)
    return None


def _event(text: str) -> dict[str, Any]:
    """Raises the error that it reports."""
    event: dict[str, Any] = json.loads(text)
    if "error" in event:
        restarts = event["error"].get("code") == 503
        raise (_BrokenOff if restarts else EngineDead)(event["error"]["message"])
    return event


def _message(body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
