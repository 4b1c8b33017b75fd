"""Streams over HTTP that resume after their last event when their connection breaks, until they are complete."""

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from paged_serve.frontend.bench.load.http_connection import ConnectionPool

ASK_AGAIN_S = 0.05


@dataclass(slots=True)
class Stream:
    """One answer as received over one or several connections: tokens, text, and the arrival times of its parts."""

    index: int
    key: str  # Idempotency-Key
    num_tokens: int
    on_token: Callable[[], None]
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    times: list[float] = field(default_factory=list)
    num_breaks: int = 0
    error: str = ""
    _complete: bool = False
    _event_id: str = ""
    _over: asyncio.Event = field(default_factory=asyncio.Event)  # set when this connection has ended
    _rest: bytes = b""

    async def read(self, pool: ConnectionPool) -> None:
        """Read the stream to its end."""
        while not self._complete and not self.error:
            self._over.clear()
            self._rest = b""
            try:
                (await pool.take()).exchange(self._request(), self)
                await self._over.wait()
            except OSError:
                pass
            if not self._complete and not self.error:
                self.num_breaks += 1
                await asyncio.sleep(ASK_AGAIN_S)

    def _request(self) -> bytes:
        body = {
            "model": "demo",
            "prompt": f"Tell me story number {self.index}.",
            "max_tokens": self.num_tokens,
            "temperature": self.index % 2,
            "seed": self.index,
            "stream": True,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        text = json.dumps(body).encode()
        head = [
            "POST /v1/completions HTTP/1.1",
            "Host: localhost",
            "Content-Type: application/json",
            f"Content-Length: {len(text)}",
            f"Idempotency-Key: {self.key}",
            *([f"Last-Event-ID: {self._event_id}"] if self._event_id else []),
        ]
        return "\r\n".join(head).encode() + b"\r\n\r\n" + text

    # Callbacks of the connection

    def begin(self, status: int) -> None:
        if status not in (200, 503):  # 503: no other frontend is ready yet
            self.error = f"HTTP {status}"

    def feed(self, data: bytes, now: float) -> None:
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            if found := re.search(rb"^id: (.*)$", event, re.MULTILINE):
                self._event_id = found[1].decode()
            if b"data: [DONE]" in event:
                self._complete = True
            elif found := re.search(rb"^data: ({.*})$", event, re.MULTILINE):
                self._take(json.loads(found[1]), now)

    def end(self, now: float) -> None:
        self._over.set()

    def fail(self, kind: str, detail: str, now: float) -> None:
        self._over.set()

    def _take(self, body: dict, now: float) -> None:
        if "choices" not in body:
            self.error = str(body)
            return
        self.times.append(now)
        choice = body["choices"][0]
        self.text += choice["text"]
        self.token_ids += choice.get("token_ids") or []
        self.on_token()

    @property
    def longest_gap_s(self) -> float:
        return max((later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)), default=0.0)
