"""Two frontends give one answer per Idempotency-Key, whichever of them a connection reaches."""

import contextlib
import json
import signal
import uuid
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from paged_serve.frontend.http.idempotency.keys import owner_of_key

from ...serving import Server
from .test_resume import CHAT, COMPLETION, MESSAGES, QUESTION, STORY, ask, events_of, first_events, whole

NUM_KEYS = 8
NUM_TIMES = 8  # all connections reach the same frontend in one of 128 cases, and there are eight keys


@pytest.fixture
def server(two_frontends: Server) -> Server:
    return two_frontends


def new_keys() -> list[str]:
    return [uuid.uuid4().hex for _ in range(NUM_KEYS)]


@pytest.mark.parametrize(
    ("path", "body"), [(COMPLETION, STORY), *((path, {**QUESTION, "max_tokens": 12}) for path in (CHAT, MESSAGES))]
)
def test_a_key_has_one_answer_however_often_it_is_sent(server, path, body):
    for key in new_keys():
        answers = {whole(ask(server, "POST", path, body, Idempotency_Key=key)) for _ in range(NUM_TIMES)}
        assert len(answers) == 1
        assert json.loads(answers.pop())["id"]


def test_another_body_with_the_same_key_is_refused_each_time(server):
    for key in new_keys():
        whole(ask(server, "POST", COMPLETION, STORY, Idempotency_Key=key))
        for number in range(NUM_TIMES):
            with ask(server, "POST", COMPLETION, {**STORY, "max_tokens": 5 + number}, Idempotency_Key=key) as refused:
                assert refused.status == 422
                assert "Use a new key" in json.loads(refused.read())["error"]["message"]


def test_a_stream_is_found_through_every_frontend_and_deleted_for_all(server):
    body = {**STORY, "stream": True}
    for key in new_keys():
        events = first_events(ask(server, "POST", COMPLETION, body, Idempotency_Key=key), 2)
        answer_id = events[0][0].partition(":")[0]
        path = f"/v1/streams/{answer_id}"
        answers = {whole(ask(server, "GET", path)) for _ in range(NUM_TIMES)}
        assert len(answers) == 1
        assert answers.pop().startswith(b"".join(event for _, event in events))
        assert {ask(server, "HEAD", path).status for _ in range(NUM_TIMES)} == {200}
        assert ask(server, "DELETE", path).status == 204
        assert {ask(server, "HEAD", path).status for _ in range(NUM_TIMES)} == {410}
        assert {ask(server, "GET", path).status for _ in range(NUM_TIMES)} == {410}


def test_concurrent_requests_with_one_key_share_one_answer(server):
    """The latest reader gets the answer; the earlier ones get 409 and repeat the request."""

    def answer(key: str) -> bytes:
        while True:
            with ask(server, "POST", COMPLETION, STORY, Idempotency_Key=key) as response:
                body = response.read()
                if response.status == 200:
                    return body
                assert response.status == 409, body

    for key in new_keys()[:2]:
        with ThreadPoolExecutor(NUM_TIMES) as clients:
            assert len(set(clients.map(answer, [key] * NUM_TIMES))) == 1


@pytest.mark.parametrize("owner", [0, 1])
def test_a_stream_continues_when_its_owner_is_killed(server, owner):
    key = next(key for key in iter(lambda: uuid.uuid4().hex, "") if owner_of_key(key, 2) == owner)
    body = {**STORY, "max_tokens": 400, "ignore_eos": True, "stream": True}
    found: list[tuple[str, bytes]] = []
    response = ask(server, "POST", COMPLETION, body, Idempotency_Key=key)
    with response, contextlib.suppress(OSError):
        for event in events_of(response):
            found.append(event)
            if len(found) == 5:
                [victim] = [
                    child for child in psutil.Process(server.process.pid).children() if is_frontend(child, owner)
                ]
                victim.send_signal(signal.SIGKILL)
    while not found[-1][1].endswith(b"[DONE]\n\n"):
        answer = whole(ask(server, "POST", COMPLETION, body, Idempotency_Key=key, Last_Event_ID=found[-1][0]))
        found.append((found[-1][0], answer))
    assert len(found) > 5
    answer_id = found[0][0].partition(":")[0]
    again = whole(ask(server, "POST", COMPLETION, body, Idempotency_Key=key, Last_Event_ID=f"{answer_id}:0"))
    assert b"".join(event for _, event in found) == again


def is_frontend(child: psutil.Process, index: int) -> bool:
    return child.name() == f"frontend-{index}"
