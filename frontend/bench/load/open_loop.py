"""Sends a load on its schedule, without waiting for answers, and records the answers with their times."""

import asyncio
import contextlib
import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from .http_connection import ConnectionPool
from .load import LoadRequest
from .openai_answer import Answer
from .timeline import Timeline

LEAD_S = 0.02  # between making the schedule and the first request
OnDone = Callable[[Timeline], None]


@dataclass(frozen=True, slots=True)
class Server:
    """An OpenAI server and the fields of its requests. `url` does not end in /v1."""

    url: str
    model: str
    api_key: str = ""
    streamed: bool = True
    ignore_eos: bool = True
    temperature: float = 0.0
    timeout_s: float = 600.0

    def encode(self, request: LoadRequest, host: str) -> bytes:
        """The bytes of the HTTP request."""
        is_chat = isinstance(request.prompt, list) and isinstance(request.prompt[0], dict)
        fields: dict[str, Any] = {
            "model": self.model,
            "messages" if is_chat else "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "temperature": self.temperature,
            "stream": self.streamed,
        }
        if self.streamed:
            fields["stream_options"] = {"include_usage": True}
        if self.ignore_eos:
            fields["ignore_eos"] = True
        body = msgspec.json.encode(fields)
        root = "" if self.url.startswith("unix:") else "/" + self.url.split("://")[1].partition("/")[2]
        path = root.rstrip("/") + ("/v1/chat/completions" if is_chat else "/v1/completions")
        lines = [
            f"POST {path} HTTP/1.1",
            f"Host: {host}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *([f"Authorization: Bearer {self.api_key}"] if self.api_key else []),
        ]
        return "\r\n".join([*lines, "", ""]).encode() + body


class LoadGenerator:
    """Runs a load. At most `max_concurrency` requests are in flight at once; 0: no limit."""

    def __init__(self, server: Server, max_concurrency: int = 0, on_done: OnDone = lambda timeline: None):
        self._server = server
        self._pool = ConnectionPool(server.url)
        self._places: contextlib.AbstractAsyncContextManager[Any] = (
            asyncio.Semaphore(max_concurrency) if max_concurrency else contextlib.nullcontext()
        )
        self._is_bounded = max_concurrency > 0
        self._on_done = on_done
        self.timelines: list[Timeline] = []  # of the requests sent so far, in their order

    async def run(self, requests: Sequence[LoadRequest], times: Sequence[float]) -> list[Timeline]:
        """Timelines in the order of the requests; `times` are seconds after the start, ascending.

        A request's latency counts from its scheduled time. The exception is a load whose requests are all scheduled at
        once and limited by `max_concurrency` (a closed loop): there it counts from the moment a slot is free.
        """
        encoded = [self._server.encode(request, self._pool.host) for request in requests]
        closed_loop = self._is_bounded and math.isclose(times[-1], times[0])
        gc.freeze()
        start = time.perf_counter() + LEAD_S
        self.timelines, tasks = [], []
        for request, data, after in zip(requests, encoded, times, strict=True):
            timeline = Timeline(start + after, request.max_tokens)
            if (wait_s := timeline.intended - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            self.timelines.append(timeline)
            tasks.append(asyncio.create_task(self._send(data, timeline, closed_loop)))
        try:
            await asyncio.gather(*tasks)
        finally:
            self._pool.close()
        return self.timelines

    async def _send(self, data: bytes, timeline: Timeline, closed_loop: bool) -> None:
        async with self._places:
            timeline.sent = time.perf_counter()
            if closed_loop:
                timeline.intended = timeline.sent
            await self._exchange(data, timeline)
        self._on_done(timeline)

    async def _exchange(self, data: bytes, timeline: Timeline) -> None:
        timeout_s = self._server.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._pool.take()
        except OSError as error:  # includes TimeoutError
            timeline.fail("no connection", str(error) or type(error).__name__, time.perf_counter())
            return
        answer = Answer(timeline, streamed=self._server.streamed)
        detail = f"no complete answer within {timeout_s:g} s"
        deadline = asyncio.get_running_loop().call_later(timeout_s, connection.abandon, "timeout", detail)
        connection.exchange(data, answer)
        await answer.done
        deadline.cancel()
