"""Passing a request on to the frontend that owns its key, over real sockets."""

import asyncio

import pytest

from paged_serve.frontend.admission import Admission
from paged_serve.frontend.http.exchange.answer_ids import owner_of_answer
from paged_serve.frontend.http.exchange.errors import HttpError
from paged_serve.frontend.http.exchange.exchange import Exchange
from paged_serve.frontend.http.idempotency import other_frontends
from paged_serve.frontend.http.idempotency.keys import KeyedRequest, owner_of_key, request_digest
from paged_serve.frontend.http.idempotency.other_frontends import MAX_TIMES_SENT, PASSED_ON, OtherFrontends
from paged_serve.frontend.http.openai.endpoints import CHAT_COMPLETION, COMPLETION
from paged_serve.frontend.http.openai.pooling.endpoints import (
    CLASSIFICATION,
    COHERE_EMBED,
    EMBEDDINGS,
    POOLING,
    RERANK,
    SCORE,
)
from paged_serve.frontend.http.openai.token_generation.endpoint import TOKENS
from paged_serve.frontend.http.routes.chat_batch import CHAT_BATCH
from paged_serve.frontend.http.routes.messages import MESSAGES
from paged_serve.frontend.http.routes.responses import RESPONSES
from paged_serve.frontend.http.routes.table import ROUTES
from paged_serve.protocol.errors import Overloaded
from paged_serve.protocol.transport.run_dir import FRONTEND_SOCKET

BODY = b'{"prompt": "x"}'
KEY = next(key for key in map(str, range(100)) if owner_of_key(key, 2) == 1)

KEYED = ((b"idempotency-key", KEY.encode()),)


def exchange(method="POST", path="/v1/completions", headers=KEYED, **scope):
    """An exchange, and the messages that are sent to its client."""
    events = []
    incoming = [{"type": "http.request", "body": BODY, "more_body": False}]

    async def receive():
        if not incoming:
            await asyncio.Event().wait()
        return incoming.pop()

    async def send(event):
        events.append(event)

    made = Exchange({"type": "http", "method": method, "path": path, "headers": [*headers], **scope}, receive, send)
    return made, events


class Owner:
    """Frontend 1: answers each connection with the next of `answers` and closes it."""

    def __init__(self, run_dir, *answers):
        self.path = f"{run_dir}/{FRONTEND_SOCKET.format(1)}"
        self.answers = [*answers]
        self.requests = []

    async def __aenter__(self):
        self.server = await asyncio.start_unix_server(self.answer, self.path)
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def answer(self, reader, writer):
        self.requests.append(await reader.readuntil(BODY))
        writer.write(self.answers.pop(0) if self.answers else b"")
        writer.close()


ENDPOINTS = (
    *(COMPLETION, CHAT_COMPLETION, CHAT_BATCH, MESSAGES, RESPONSES, TOKENS),
    *(EMBEDDINGS, COHERE_EMBED, POOLING, CLASSIFICATION, SCORE, RERANK),
)


@pytest.mark.parametrize("prefix", sorted({endpoint.prefix for endpoint in ENDPOINTS}))
def test_a_key_and_the_ids_of_its_answers_have_one_owner(prefix):
    for number in range(200):
        request = KeyedRequest(b"", f"key-{number}", request_digest("m", "/v1/completions", f"key-{number}", BODY))
        answer_id = request.answer_id(prefix, 1_800_000_000)
        for count in (1, 2, 3, 64):
            assert owner_of_key(request.key, count) == owner_of_answer(answer_id, count) < count
    assert {owner_of_key(f"key-{number}", 2) for number in range(200)} == {0, 1}


@pytest.mark.parametrize(
    "asked",
    [
        {"headers": ()},
        {"headers": ((b"idempotency-key", b"no key"),)},
        {"path": "/v1/models", "method": "GET"},
        {"path": "/v1/streams/nonsense", "method": "GET"},
        {PASSED_ON: True},
    ],
)
def test_a_request_without_a_key_or_already_passed_on_is_answered_here(asked):
    assert OtherFrontends("/nowhere", 0, 2).owner_of(exchange(**asked)[0]) is None


def test_only_the_owner_answers_a_key():
    assert [OtherFrontends("/nowhere", index, 2).owner_of(exchange()[0]) for index in (0, 1)] == [1, None]


@pytest.mark.parametrize("spec", [spec for spec in ROUTES if spec.method == "POST"], ids=lambda spec: spec.path)
def test_every_route_that_takes_a_key_is_answered_by_its_owner(spec):
    path = spec.path.replace("{id}", "unknown")
    owner = 1 if "Idempotency-Key" in spec.headers else None
    assert OtherFrontends("/nowhere", 0, 2).owner_of(exchange(path=path)[0]) == owner


def test_a_passed_on_request_and_its_answer_arrive_unchanged(run_dir):
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ndate: now\r\ntransfer-encoding: chunked\r\n\r\n"

    async def run():
        headers = ((b"idempotency-key", KEY.encode()), (b"authorization", b"Bearer a"), (b"connection", b"keep-alive"))
        asked, events = exchange(headers=headers)
        async with Owner(run_dir, head + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n") as owner:
            await OtherFrontends(run_dir, 0, 2).pass_on(asked, 1)
        return owner.requests, events

    [request], [start, *rest] = asyncio.run(run())
    assert request.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert b"\r\nauthorization: Bearer a\r\n" in request
    assert b"keep-alive" not in request
    assert (start["status"], start["headers"]) == (200, [(b"content-type", b"text/event-stream")])
    assert b"".join(event["body"] for event in rest) == b"abcde"
    assert [event["more_body"] for event in rest][-1] is False


def test_a_request_waits_for_an_absent_owner(run_dir):
    async def run():
        asked, events = exchange()
        passing = asyncio.create_task(OtherFrontends(run_dir, 0, 2).pass_on(asked, 1))
        await asyncio.sleep(0)
        async with Owner(run_dir, b"HTTP/1.1 204 No Content\r\n\r\n"):
            await passing
        return events

    assert asyncio.run(run())[0]["status"] == 204


def test_a_request_that_ends_its_owner_is_sent_twice_and_then_refused(run_dir):
    async def run():
        async with Owner(run_dir) as owner:
            with pytest.raises(HttpError) as refused:
                await OtherFrontends(run_dir, 0, 2).pass_on(exchange()[0], 1)
        return owner.requests, refused.value

    requests, refused = asyncio.run(run())
    assert len(requests) == MAX_TIMES_SENT
    assert refused.status == 503


def test_the_wait_for_an_absent_owner_is_bounded(run_dir, monkeypatch):
    monkeypatch.setattr(other_frontends, "REPLACED_WITHIN_S", 0.1)
    with pytest.raises(HttpError, match="has ended"):
        asyncio.run(OtherFrontends(run_dir, 0, 2).pass_on(exchange()[0], 1))


def test_a_request_for_an_absent_owner_is_refused_while_the_server_drains(run_dir):
    admission = Admission(max_active=1)
    passing_on = OtherFrontends(run_dir, 0, 2, admission.check_draining).pass_on

    async def run():
        waiting = asyncio.create_task(passing_on(exchange()[0], 1))
        await asyncio.sleep(0)
        admission.draining = True
        with pytest.raises(Overloaded) as refused:
            await asyncio.wait_for(waiting, 60)
        return refused.value

    assert asyncio.run(run()).draining


def test_a_drain_waits_for_an_answer_that_another_frontend_makes(run_dir):
    admission = Admission(max_active=1)
    admission.draining = True

    async def run():
        asked, events = exchange()
        async with Owner(run_dir, b"HTTP/1.1 204 No Content\r\n\r\n"):
            await OtherFrontends(run_dir, 0, 2, admission.check_draining).pass_on(asked, 1)
        return events

    assert asyncio.run(run())[0]["status"] == 204


def test_a_truncated_answer_stays_truncated(run_dir):
    async def run():
        asked, events = exchange()
        async with Owner(run_dir, b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc"):
            with pytest.raises(HttpError):
                await OtherFrontends(run_dir, 0, 2).pass_on(asked, 1)
        return events

    events = asyncio.run(run())
    assert events[-1] == {"type": "http.response.body", "body": b"abc", "more_body": True}
