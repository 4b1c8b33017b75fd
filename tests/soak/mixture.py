"""The traffic of a server beside the streams of tests/chaos/streams, each answer compared with the first one."""

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from paged_serve.frontend.client.async_client import AsyncClient
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..chaos.streams.load_requests import LoadRequest, Received
from ..chaos.streams.transports import Attempt, EngineTransport, HttpTransport
from ..end_to_end.operation.test_bad_input import BAD

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me of the sea, please."}]
CHAT = {"model": "demo", "messages": MESSAGES, "max_tokens": 24, "temperature": 0.7, "seed": 5}
PROMPT = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 24, "seed": 6}
QUESTIONS: list[tuple[str, Any]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", CHAT | {"stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2, "n": 2}),
    ("/v1/completions", PROMPT),
    ("/v1/completions", PROMPT | {"stop": ["the", "and"], "echo": True}),
    ("/v1/completions", PROMPT | {"prompt": ["One.", "Two."], "logprobs": 1, "max_tokens": 8}),
    ("/tokenize", {"model": "demo", "messages": MESSAGES}),
    ("/tokenize", {"model": "demo", "messages": MESSAGES, "chat_template_kwargs": {"mood": "merry"}}),
    ("/tokenize", {"model": "demo", "prompt": "The quick brown fox. " * 800}),
    ("/detokenize", {"model": "demo", "tokens": list(range(3, 200))}),
    *((path, body) for path, body, _, _ in BAD),
]
PIECES = (b"", b"G", b"GET /v1/models HTTP/1.1\r\nHost: loc", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n")
MANY_TENANTS = 1020  # nearly as many as the engine remembers, or lets wait
RANDOM_FIELDS = (
    "id",
    "created",
    "prompt_tokens_details",
)  # differ from answer to answer; the last depends on the cache


class Mixture:
    """Call `learn` once without faults, then `until`. `counts` are by action; `wrong` has the answers that differ."""

    def __init__(self, port: int, run_dir: Path, requests: Sequence[LoadRequest], seed: int):
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._port = port
        self._run_dir = run_dir
        self._requests = requests
        self._rng = random.Random(f"mixture {seed}")
        self._answers: dict[int, tuple[int, object]] = {}  # by question
        self._streams: dict[int, list[Received]] = {}  # by request
        self._deeds = (self._ask, self._ask, self._resume, self._come_and_go, self._drop, self._leave, self._be_new)

    async def learn(self) -> None:
        async with self._http() as client:
            for number in range(len(QUESTIONS)):
                self._answers[number] = await self._answer(client, number)
        for request in self._requests:
            attempt = Attempt(request)
            async for _ in HttpTransport(self._port).ask(attempt):
                pass
            self._streams[request.number] = attempt.received
        await self._fill_pools()

    async def _fill_pools(self) -> None:
        """Threads, template processes, remembered tenants: there may be so many, and then no more."""
        async with self._http() as client:
            slow = [(path, body) for path, body in QUESTIONS if path == "/tokenize"]
            for _ in range(3):
                await asyncio.gather(*(client.post(path, json=body) for path, body in slow * 30))
        async with await AsyncClient.connect(str(self._run_dir)) as engine:
            one_token = SamplingParams(max_tokens=1)
            asked = [engine.submit([5], one_token, tenant=f"tenant {number}") for number in range(MANY_TENANTS)]
            for request in asked:
                async for _ in request:
                    pass

    async def until(self, end: float, places: int) -> None:
        """So many at once do one thing after the other, until `end` (of the event loop's clock)."""
        async with self._http() as client:
            await asyncio.gather(*(self._do_things(client, end) for _ in range(places)))

    async def _do_things(self, client: httpx.AsyncClient, end: float) -> None:
        while asyncio.get_running_loop().time() < end:
            deed = self._rng.choice(self._deeds)
            self.counts[deed.__name__] += 1
            try:
                await deed(client)
            except Exception as error:
                self.wrong.append(f"{deed.__name__}: {type(error).__name__} {error}"[:2000])

    def _http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=f"http://127.0.0.1:{self._port}", timeout=120.0)

    async def _answer(self, client: httpx.AsyncClient, number: int) -> tuple[int, object]:
        path, body = QUESTIONS[number]
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        response = await client.post(path, content=data, headers={"content-type": "application/json"})
        if response.headers["content-type"].startswith("text/event-stream"):
            return response.status_code, received_in_stream(response.text)
        return response.status_code, without_random_fields(response.json())

    async def _ask(self, client: httpx.AsyncClient) -> None:
        number = self._rng.randrange(len(QUESTIONS))
        answer = await self._answer(client, number)
        if answer != self._answers[number]:
            self.wrong.append(f"{QUESTIONS[number]}: {answer} is not {self._answers[number]}"[:2000])

    async def _resume(self, _: httpx.AsyncClient) -> None:
        """A stream whose connection breaks again and again, and that goes on behind its last event."""
        way, attempt = HttpTransport(self._port, keeps=True), Attempt(self._rng.choice(self._requests))
        while any(received.finish_reason is None for received in attempt.received):
            await self._read_some(way, attempt)
        self._compare(attempt, "resumed")

    async def _come_and_go(self, _: httpx.AsyncClient) -> None:
        """A new instance of the client library for one request, of a new tenant."""
        async with await AsyncClient.connect(str(self._run_dir)) as client:
            attempt = Attempt(self._rng.choice(self._requests))
            client.submit([5, 6, 7], attempt.request.params, tenant=f"tenant {self._rng.random()}")  # dropped at once
            if self._rng.random() < 0.5:
                await self._read_some(EngineTransport(client), attempt)
                return
            async for _ in EngineTransport(client).ask(attempt):
                pass
            for received, whole in zip(attempt.received, self._streams[attempt.request.number], strict=True):
                if received.token_ids != whole.token_ids:
                    self.wrong.append(f"request {attempt.request.number}: {received} is not {whole}"[:2000])

    async def _drop(self, _: httpx.AsyncClient) -> None:
        """A connection that closes before it has asked anything."""
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(self._rng.choice(PIECES))
        await asyncio.sleep(self._rng.uniform(0, 0.1))
        if self._rng.random() < 0.5:
            writer.transport.abort()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def _leave(self, client: httpx.AsyncClient) -> None:
        """An answer without a reader, with a key or without."""
        headers = {"idempotency-key": str(self._rng.random())} if self._rng.random() < 0.5 else {}
        with contextlib.suppress(httpx.TimeoutException):
            body = PROMPT | {"max_tokens": 200, "stream": self._rng.random() < 0.5}
            await client.post("/v1/completions", json=body, headers=headers, timeout=self._rng.uniform(0.001, 0.2))

    async def _be_new(self, client: httpx.AsyncClient) -> None:
        """Send values that no request had before: names, keys, salts, routes, texts."""
        new = f"new-{self._rng.random()}"
        chat = CHAT | {"chat_template_kwargs": {"mood": new}}
        statuses = [
            (await client.get(f"/v1/models/{new}")).status_code,
            (await client.get(f"/v1/streams/{new}")).status_code,
            (await client.post("/v1/completions", json=PROMPT | {"model": new})).status_code,
            (await client.post("/v1/completions", json=PROMPT | {new: 1})).status_code,
            (await client.post("/v1/completions", json=PROMPT | {"cache_salt": new, "prompt": new})).status_code,
            (await client.post("/v1/chat/completions", json=chat)).status_code,
        ]
        if statuses != [404, 404, 404, 400, 200, 200]:
            self.wrong.append(f"{new}: {statuses}")

    async def _read_some(self, way: HttpTransport | EngineTransport, attempt: Attempt) -> None:
        leave_after = attempt.num_tokens + self._rng.randint(1, 40)
        async with contextlib.aclosing(way.ask(attempt)) as deltas:  # type: ignore[type-var]
            async for _ in deltas:
                if attempt.num_tokens >= leave_after:
                    return

    def _compare(self, attempt: Attempt, how: str) -> None:
        whole = self._streams[attempt.request.number]
        if attempt.received != whole:
            self.wrong.append(f"request {attempt.request.number} {how}: {attempt.received} is not {whole}"[:2000])


def without_random_fields(answer: object) -> object:
    match answer:
        case dict():
            return {name: without_random_fields(part) for name, part in answer.items() if name not in RANDOM_FIELDS}
        case list():
            return [without_random_fields(part) for part in answer]
    return answer


def received_in_stream(text: str) -> object:
    """The text and the end, however many pieces they came in."""
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    received = "".join(choice["delta"].get("content") or "" for choice in choices)
    usage = without_random_fields(chunks[-1].get("usage"))
    return received, [choice["finish_reason"] for choice in choices][-1], usage, text.endswith("[DONE]\n\n")
