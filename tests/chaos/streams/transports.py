"""The transports: HTTP, a socket for each request, and the client library over ZeroMQ. They record arrival times."""

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import httptools

from paged_serve.frontend.client.async_client import AsyncClient
from paged_serve.frontend.structured_outputs.in_process import with_grammar
from paged_serve.protocol.errors import Overloaded, PagedServeError

from .load_requests import LoadRequest, Received

SILENCE_S = 120.0  # a stream without output for so long hangs


NOTICEABLE_S = 0.05


class Refused(Exception):
    """Not accepted: 429, 503, or no server listens. The request may be retried later."""


class Broken(Exception):
    """The connection ended before the answer did."""


class Failed(Exception):
    """The server accepted the request and ended it with an error."""


@dataclass(slots=True)
class Attempt:
    """One attempt at a request. Times are `time.monotonic` seconds."""

    request: LoadRequest
    received: list[Received] = field(init=False)
    sent_at: float = 0.0
    heard_at: float = 0.0  # last
    num_outputs: int = 0
    silences: list[tuple[float, float]] = field(default_factory=list)  # start and end; longer than NOTICEABLE_S
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    last_event: str = ""  # its id, if events have ids

    def __post_init__(self) -> None:
        self.received = [Received() for _ in range(self.request.params.n)]

    @property
    def num_tokens(self) -> int:
        return sum(len(received.token_ids) for received in self.received)

    def sent(self) -> None:
        if not self.sent_at:
            self.sent_at = self.heard_at = time.monotonic()

    def heard(self) -> None:
        now = time.monotonic()
        if now - self.heard_at > NOTICEABLE_S:
            self.silences.append((self.heard_at, now))
        self.heard_at = now
        self.num_outputs += 1


class Transport(Protocol):
    name: str
    can_resume: bool  # whether a broken attempt continues; otherwise it starts again
    needs_client: bool  # whether a request ends with its connection
    is_chat: bool  # whether the prompt is a conversation, so that the answer differs from that of other transports

    def ask(self, attempt: Attempt) -> AsyncIterator[None]:
        """Yields after each piece of output. Raises Refused, Broken or Failed; closing it aborts the request."""
        ...


class EngineTransport:
    """Directly to the engine core, without frontends."""

    name = "zmq"
    can_resume = True  # by itself
    needs_client = True
    is_chat = False

    def __init__(self, client: AsyncClient):
        self._client = client

    async def ask(self, attempt: Attempt) -> AsyncIterator[None]:
        attempt.sent()
        asked = attempt.request
        request = self._client.submit(asked.prompt, with_grammar(asked.params), adapter=asked.adapter)
        try:
            async for delta in request:
                received = attempt.received[delta.index]
                received.token_ids += delta.token_ids
                received.logprobs += [one.logprobs[0] for one in delta.logprobs or ()]
                if delta.finish_reason is not None:
                    assert received.finish_reason is None, "a sequence ended twice"
                    received.finish_reason = delta.error or delta.finish_reason.api_name
                attempt.heard()
                yield
        except Overloaded as error:
            raise Refused(str(error)) from None
        except PagedServeError as error:
            raise Failed(f"{type(error).__name__}: {error}") from None
        finally:
            request.abort()


class _Answer:
    """httptools' callbacks: the status, and the body's complete events."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.is_over = False
        self.events: list[str] = []
        self._rest = b""

    def on_body(self, body: bytes) -> None:
        *whole, self._rest = (self._rest + body).split(b"\n\n")
        self.events += [event.decode() for event in whole]

    def on_message_complete(self) -> None:
        self.is_over = True

    @property
    def text(self) -> str:
        return "\n".join([*self.events, self._rest.decode()])


class HttpTransport:
    """POST /v1/completions or /v1/chat/completions as server-sent events, one connection per request.

    `keeps`: with an Idempotency-Key; a broken attempt continues after its last event when it is sent again.
    """

    def __init__(self, port: int, *, keeps: bool = False, is_chat: bool = False):
        self.name = ("chat" if is_chat else "http") + (" with key" if keeps else "")
        self.can_resume, self.needs_client, self.is_chat = keeps, not keeps, is_chat
        self._port = port

    async def ask(self, attempt: Attempt) -> AsyncIterator[None]:
        asked = attempt.request
        body = json.dumps(asked.chat_body() if self.is_chat else asked.completion_body()).encode()
        path = "/v1/chat/completions" if self.is_chat else "/v1/completions"
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        if self.can_resume:
            head += f"idempotency-key: {attempt.key}\r\n"
            head += f"last-event-id: {attempt.last_event}\r\n" if attempt.last_event else ""
        head += f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        attempt.sent()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError as error:
            raise Refused(f"no connection: {error}") from None
        try:
            writer.write(head.encode() + body)
            async for _ in self._read(reader, attempt):
                yield
        except OSError as error:
            raise Broken(str(error)) from None
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _read(self, reader: asyncio.StreamReader, attempt: Attempt) -> AsyncIterator[None]:
        answer, is_done = _Answer(), False
        while data := await asyncio.wait_for(reader.read(1 << 16), SILENCE_S):
            answer.parser.feed_data(data)
            if answer.parser.get_status_code() != 200:
                await self._refused(reader, answer)
            events, answer.events = answer.events, []
            for event in events:
                is_done = is_done or event.endswith("data: [DONE]")
                self._take(event, attempt)
            if events:
                attempt.heard()
                yield
        if not is_done:
            raise Broken("the connection ended before the answer did")

    async def _refused(self, reader: asyncio.StreamReader, answer: _Answer) -> None:
        while not answer.is_over and (data := await reader.read(1 << 16)):
            answer.parser.feed_data(data)
        status = answer.parser.get_status_code()
        raise (Refused if status in (429, 503) else Failed)(f"status {status}: {answer.text}")

    def _take(self, event: str, attempt: Attempt) -> None:
        event_id = attempt.last_event
        for line in event.splitlines():
            if line.startswith("id: "):
                event_id = line[4:]
                continue
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise Failed(line)
            for choice in chunk["choices"]:
                received = attempt.received[choice["index"]]
                assert received.finish_reason is None, "output of a sequence that has ended"
                received.text += (choice["delta"].get("content") or "") if self.is_chat else choice["text"]
                received.token_ids += choice.get("token_ids") or []
                received.logprobs += _logprobs(choice.get("logprobs") or {})
                received.finish_reason = choice["finish_reason"]
        attempt.last_event = event_id


def _logprobs(choice: dict[str, Any]) -> list[float]:
    """The tokens' logprobs, of either API."""
    return choice.get("token_logprobs", []) + [each["logprob"] for each in choice.get("content") or ()]


NUM_TRANSPORTS = 3


def transports(port: int, client: AsyncClient) -> list[Transport]:
    return [HttpTransport(port), HttpTransport(port, keeps=True), EngineTransport(client)]


def chats(port: int) -> list[Transport]:
    return [HttpTransport(port, is_chat=True), HttpTransport(port, keeps=True, is_chat=True)]
