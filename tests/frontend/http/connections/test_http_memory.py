"""The resources of one client: no slot before its request is complete, no thread once it is gone, bounded memory."""

import asyncio
import contextlib
import gc
import json
import threading

import msgspec
import pytest

from ...fake_engine import LIMITS
from ...http_server import Server
from ..idempotency.test_http_resume import client_of


def scope_of(method: str, path: str, **headers: str) -> dict:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": method, "path": path, "headers": named, "client": ("127.0.0.1", 1)}


class Sender:
    """A client of the application that sends its body and disconnects when the test says so."""

    def __init__(self, server: Server, path: str, body: bytes, **headers: str):
        self.sent: list[dict] = []
        self.body_comes, self.leaves = asyncio.Event(), asyncio.Event()
        self._body = body
        self.task = asyncio.create_task(server.app(scope_of("POST", path, **headers), self._receive, self._send))

    async def _receive(self) -> dict:
        await self.body_comes.wait()
        body, self._body = self._body, b""
        if body:
            return {"type": "http.request", "body": body, "more_body": False}
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, event: dict) -> None:
        self.sent.append(event)


@pytest.mark.parametrize("headers", [{}, {"idempotency_key": "k"}])
def test_a_request_without_its_body_is_not_in_progress(folder, headers):
    server, body = Server(folder), b'{"prompt": "x"}'  # the server answers eight requests at a time

    async def talk() -> None:
        senders = [
            Sender(server, "/v1/completions", body, **{name: f"{key}{i}" for name, key in headers.items()})
            for i in range(20)
        ]
        await asyncio.sleep(0)
        async with client_of(server) as client:
            assert (await client.post("/v1/completions", json={"prompt": "x"})).status_code == 200
        for sender in senders[:3]:
            sender.body_comes.set()
            await sender.task
            assert sender.sent[0]["status"] == 200
        for sender in senders[3:]:
            sender.task.cancel()

    asyncio.run(talk())


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("headers", [{}, {"idempotency_key": "k"}])
def test_the_request_of_a_disconnected_client_is_neither_rendered_nor_tokenized(folder, path, headers):
    server = Server(folder)
    service = server.app.router._service
    texts: list[str] = []
    encode = service.tokenizer.encode
    service.tokenizer.encode = lambda text, special=True: texts.append(text) or encode(text, special)
    words = "word " * 4000  # too long to be decoded or tokenized on the loop
    messages = {"messages": [{"role": "user", "content": words}], "max_tokens": 4}
    fields = {"/v1/completions": {"prompt": words}, "/v1/responses": {"input": words}}.get(path, messages)

    async def talk() -> None:
        free = threading.Event()
        blockers = [service.workers.submit(free.wait) for _ in range(service.workers._max_workers)]
        senders = [Sender(server, path, json.dumps(fields).encode(), **headers) for _ in range(5)]
        for sender in senders:
            sender.body_comes.set()
        for _ in range(10):
            await asyncio.sleep(0)
        for sender in senders:
            sender.leaves.set()
        async with asyncio.timeout(10):
            await asyncio.gather(*(sender.task for sender in senders))
        free.set()
        for blocker in blockers:
            blocker.result()
        await service.off_loop(10**6, lambda: None)
        assert all(not sender.sent for sender in senders)

    asyncio.run(talk())
    assert texts == []
    assert server.engine.requests == []


LONG = msgspec.structs.replace(LIMITS, max_model_len=4096)
LARGE = {"prompt": ["x"] * 64, "max_tokens": 350, "temperature": 0, "logprobs": 20}


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "k"}])
def test_a_whole_answer_ends_when_it_has_grown_too_large(folder, headers):
    server = Server(folder, "abcdefgh" * 50, {"max_buffered_bytes": 64 << 20})
    server.engine.per_delta, server.engine.limits = 16, LONG
    refused = server.ask("POST", "/v1/completions", LARGE, **headers)
    assert refused.status_code == 400
    message = refused.json()["error"]["message"]
    assert "This answer, which is not streamed, needs" in message
    assert "a quarter of --max-buffered-bytes" in message
    assert all(request.aborted for request in server.engine.requests)
    buffers = server.app.router._service.buffers
    assert buffers.num_leased == 0
    streamed = server.ask("POST", "/v1/completions", LARGE | {"stream": True})
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert '"error"' not in streamed.text
    assert buffers.num_leased == 0


def test_a_too_large_answer_of_known_length_is_refused_at_once(folder):
    server = Server(folder, "abcdefgh" * 50, {"max_buffered_bytes": 64 << 20})
    server.engine.limits = LONG
    refused = server.ask("POST", "/v1/completions", LARGE | {"ignore_eos": True})
    assert refused.status_code == 400
    assert "one request may take 16777216" in refused.json()["error"]["message"]
    assert server.engine.requests == []


def test_a_full_frontend_refuses_requests_and_later_answers_again(folder):
    server = Server(folder)
    buffers = server.app.router._service.buffers
    leases = [server.app._buffers.lease() for _ in range(2)] + [buffers.lease() for _ in range(2)]
    for lease in leases:
        lease.resize(lease.budget.max_bytes // 4)
    refused = server.ask("POST", "/v1/completions", {"prompt": "x"})
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert "--max-buffered-bytes" in refused.json()["error"]["message"]
    for lease in leases:
        lease.close()
    assert server.ask("POST", "/v1/completions", {"prompt": "x"}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
def test_a_compressed_body_is_refused_with_the_reason(folder, path):
    refused = Server(folder).ask("POST", path, b"\x1f\x8b123", **{"content-encoding": "gzip"})
    assert refused.status_code == 415
    assert refused.headers["accept-encoding"] == "identity"
    assert "Content-Encoding: gzip" in refused.json()["error"]["message"]
    plain = Server(folder).ask("POST", path, {"prompt": "x"}, **{"content-encoding": "identity"})
    assert plain.status_code == 200


def test_a_head_request_takes_a_stream_from_no_reader(folder):
    server = Server(folder, "hello " * 5)
    server.engine.pause_s = 0.01

    async def talk() -> None:
        async with client_of(server) as client:
            body = {"prompt": "x", "max_tokens": 20, "stream": True}
            reading = asyncio.create_task(client.post("/v1/completions", json=body, headers={"Idempotency-Key": "k"}))
            kept = server.app.router._service.answers
            while not len(kept):
                await asyncio.sleep(0)
            ((_, answer_id),) = kept._by_id
            known = await client.head(f"/v1/streams/{answer_id}")
            assert (known.status_code, known.content) == (200, b"")
            assert known.headers["content-type"].startswith("text/event-stream")
            assert (await client.head("/v1/streams/cmpl-0")).status_code == 404
            other = {"Last-Event-ID": "cmpl-" + "0" * 32 + ":1"}
            assert (await client.head(f"/v1/streams/{answer_id}", headers=other)).status_code == 400
            whole = (await reading).text
            assert '"error"' not in whole
            assert whole.endswith("data: [DONE]\n\n")

    asyncio.run(talk())


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("streams", [True, False])
def test_a_keyed_request_that_ends_early_leaves_no_reference_cycle(folder, streams, fails):
    """A full collection runs once in millions of allocations: until then cyclic garbage keeps its memory."""
    server = Server(folder, options={"resume_grace_s": 0})
    server.engine.pause_s, server.engine.limits, server.engine.fails_after = 0.001, LONG, 3 if fails else None
    body = json.dumps({"prompt": "x", "max_tokens": 300, "ignore_eos": True, "stream": streams}).encode()

    async def leave(number: int) -> None:
        sender = Sender(server, "/v1/completions", body, idempotency_key=f"k{number}")
        sender.body_comes.set()
        while not server.engine.requests:
            await asyncio.sleep(0)
        await asyncio.sleep(0.005)
        if not fails:
            sender.leaves.set()
        await sender.task
        server.engine.requests.clear()
        for _ in range(10):
            await asyncio.sleep(0)

    async def talk() -> int:
        for number in range(3):
            await leave(number)
        gc.collect()
        gc.disable()
        for number in range(3, 13):
            await leave(number)
        return gc.collect()

    with contextlib.ExitStack() as after:
        after.callback(gc.enable)
        assert asyncio.run(talk()) == 0
