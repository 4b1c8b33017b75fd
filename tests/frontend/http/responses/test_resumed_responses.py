"""Background responses whose process ended, or that found no memory, are resumed with the same events."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from paged_serve.frontend.buffer_budget import BufferBudget
from paged_serve.frontend.http.routes.stored.resume import DEADLY
from paged_serve.protocol.errors import InvalidRequest, Overloaded
from paged_serve.protocol.messages.engine_core import DEADLY_ISOLATIONS

from ...http_server import Server
from .response_server import OUTPUT, PATH
from .stored_server import BEHIND, client_of, created, ended, events_of, resume, stored_servers

start = pytest.fixture(stored_servers)


def test_a_response_interrupted_by_the_end_of_its_process_is_resumed_with_the_same_bytes(start, monkeypatch):
    """`asyncio.run` ends the tasks of its loop, as the end of a process does."""
    monkeypatch.setattr("paged_serve.frontend.http.stored_responses.background_run.FLUSH_BYTES", 3000)

    async def begin(server: Server, num_answered: int) -> tuple[str, str]:
        """Run until so many events are sent."""
        server.engine.pause_s = 0.001
        answered, is_enough = [], asyncio.Event()

        async def send(message: dict) -> None:
            answered.append(message.get("body", b"").decode())
            if "".join(answered).count("\n\n") >= num_answered:
                is_enough.set()

        async def receive() -> dict:
            await asyncio.sleep(0 if unread else 1e6)
            return {"type": "http.request", "body": unread.pop() if unread else b""}

        unread = [json.dumps({"input": "hi", "stream": True, **BEHIND}).encode()]
        scope = {"type": "http", "method": "POST", "path": PATH, "headers": [(b"host", b"localhost")]}
        async with client_of(server):
            answering = asyncio.create_task(server.app(scope, receive, send))
            await is_enough.wait()
            assert not answering.done()
        return events_of("".join(answered))[0]["response"]["id"], "".join(answered)

    async def read(server: Server, answer_id: str) -> tuple[str, dict]:
        async with client_of(server) as client:
            text = (await client.get(f"{PATH}/{answer_id}", params={"stream": "true"})).text
            return text, await ended(client, answer_id)

    for num_answered in (1, 5, 40):
        answer_id, answered = asyncio.run(begin(start(OUTPUT * 3), num_answered))
        asyncio.run(begin(start(OUTPUT * 3), 3))  # leaves it unfinished again, and another one as well
        whole, answer = asyncio.run(read(start(OUTPUT * 3), answer_id))
        assert whole.startswith(answered)
        events = events_of(whole)
        assert [event["sequence_number"] for event in events] == [*range(len(events))]
        assert (events[-1]["response"], answer["status"]) == (answer, "completed")
        assert start().app  # another process can open the file meanwhile


def test_a_request_for_a_response_that_is_not_resumed_yet_waits(start):
    request = {"input": "hi", "stream": True, **BEHIND}
    keyed = {"headers": {"idempotency-key": "one"}, "json": request}

    async def begin(server: Server) -> str:
        async with client_of(server) as client:
            server.engine.pause_s = 0.001
            answering = asyncio.create_task(client.post(PATH, **keyed))
            store = server.app.router._service.stored
            while not store.runs:  # a run that begins while the loop ends would outlive it
                await asyncio.sleep(0)
                assert not answering.done()
            return (await store.jobs())[0].id

    async def ask(server: Server, answer_id: str) -> None:
        path = f"{PATH}/{answer_id}"
        async with client_of(server, has_resumed=False) as client:
            asked = [
                asyncio.create_task(asking)
                for asking in (
                    client.get(path, params={"stream": "true"}),
                    client.post(PATH, **keyed),
                    client.post(PATH, json=request),
                    client.get(path),
                )
            ]
            done, _ = await asyncio.wait(asked, timeout=0.05)
            assert not done
            await resume(server)
            stream, again, new, now = await asyncio.gather(*asked)
            assert stream.text == again.text
            assert now.json()["status"] in ("queued", "in_progress")
            assert (await client.get(path)).json() == events_of(stream.text)[-1]["response"]
            assert [event["sequence_number"] for event in events_of(new.text)] == [*range(len(events_of(stream.text)))]

    asyncio.run(ask(start(), asyncio.run(begin(start()))))


def test_a_response_that_cannot_be_resumed_has_failed(start):
    async def begin(server: Server) -> list[str]:
        server.engine.pause_s = 1.0
        async with client_of(server, "k" * 16 if server.options.get("api_keys") else "") as client:
            return [(await created(client, **BEHIND, **more))["id"] for more in ({}, {"temperature": 0})]

    async def outcome(server: Server, answer_id: str, key: str = "") -> dict:
        async with client_of(server, key) as client:
            return await ended(client, answer_id)

    one, _ = asyncio.run(begin(start()))
    other = start(allow_special_tokens=True)
    answer = asyncio.run(outcome(other, one))
    assert (answer["status"], answer["error"]["code"]) == ("failed", "server_error")
    assert "another model or other settings" in answer["error"]["message"]


async def begun(server: Server, num: int, **fields) -> list[str]:
    """The ids of background responses that are left unfinished."""
    server.engine.pause_s = 1.0
    async with client_of(server) as client:
        return [(await created(client, **BEHIND, **fields))["id"] for _ in range(num)]


async def isolated(server: Server, count: int, *, predecessor_failed: bool = True) -> tuple[list[int], bool]:
    """Resume, and end as if the process failed once `count` responses run; returns the isolations of each job."""
    server.engine.pause_s = 1.0
    async with client_of(server, has_resumed=False):
        is_deadly = await resume(server, predecessor_failed=predecessor_failed)
        store = server.app.router._service.stored
        while len(server.engine.requests) < count:
            await asyncio.sleep(0)
        return [row.isolations for row in await store.jobs()], is_deadly


def test_after_a_failure_jobs_run_one_by_one_and_the_one_in_whose_isolation_processes_fail_is_given_up(start):
    first, second = asyncio.run(begun(start(), 2))
    for number in range(DEADLY_ISOLATIONS):
        assert asyncio.run(isolated(start(), 1)) == ([number + 1, 0], False)

    async def outcomes(server: Server) -> list[dict]:
        async with client_of(server, has_resumed=False) as client:
            assert await resume(server, predecessor_failed=True)
            return [await ended(client, answer_id) for answer_id in (first, second)]

    given_up, whole = asyncio.run(outcomes(start()))
    assert (given_up["status"], whole["status"]) == ("failed", "completed")
    assert DEADLY in given_up["error"]["message"]


def test_an_isolation_that_a_signal_has_ended_does_not_count(start):
    asyncio.run(begun(start(), 2))
    for _ in range(3):
        assert asyncio.run(isolated(start(), 1)) == ([1, 0], False)
        assert asyncio.run(isolated(start(), 2, predecessor_failed=False)) == ([0, 0], False), "all run at once"


@pytest.fixture
def refused(monkeypatch) -> asyncio.Event:
    """Set when a lease finds no memory; it may look again at once."""
    monkeypatch.setattr("paged_serve.frontend.buffer_budget.RETRY_AFTER_S", 0.001)
    refused, check = asyncio.Event(), BufferBudget._check

    def watched(*arguments) -> None:
        try:
            check(*arguments)
        except Overloaded:
            refused.set()
            raise

    monkeypatch.setattr(BufferBudget, "_check", watched)
    return refused


@contextmanager
def no_memory(buffers: BufferBudget) -> Iterator[None]:
    with buffers.lease() as one, buffers.lease() as two:
        two.resize(buffers.max_bytes // 4)
        one.resize(buffers.max_bytes // 2 - buffers.num_leased)
        yield


def test_a_response_that_finds_no_memory_when_it_is_resumed_waits_for_it(start, refused):
    async def run(server: Server, one: str, two: str) -> None:
        buffers = server.app.router._service.buffers
        async with client_of(server, has_resumed=False) as client:
            with no_memory(buffers):
                await resume(server)
                await refused.wait()
                waiting = (await client.get(f"{PATH}/{one}")).json()
                assert (waiting["status"], waiting["error"]) == ("queued", None)
                cancelled = (await client.post(f"{PATH}/{two}/cancel")).json()
                assert (cancelled["status"], cancelled["output"]) == ("cancelled", [])
            assert (await ended(client, one))["status"] == "completed"
            assert (server.admission.num_active, buffers.num_leased) == (0, 0)

    asyncio.run(run(start(), *asyncio.run(begun(start(), 2))))


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_response_that_finds_no_memory_for_its_output_is_made_again_with_the_same_events(
    start, refused, is_cancelled
):
    async def run(server: Server) -> None:
        server.engine.pause_s = 0.001
        buffers = server.app.router._service.buffers
        async with client_of(server) as client:
            reading = asyncio.create_task(client.post(PATH, json={"input": "hi", "stream": True, **BEHIND}))
            runs = server.app.router._service.stored.runs
            while not runs or next(iter(runs.values()))._num_made < 10:
                await asyncio.sleep(0)
            path = f"{PATH}/{next(iter(runs.values())).row.id}"
            with no_memory(buffers):
                await refused.wait()
                if is_cancelled:
                    assert (await client.post(f"{path}/cancel")).json()["status"] == "cancelled"
            events = events_of((await reading).text)
            answer = (await client.get(path)).json()
            assert [event["sequence_number"] for event in events] == [*range(len(events))]
            assert answer["error"] is None
            if not is_cancelled:
                assert (answer["status"], events[-1]["response"]) == ("completed", answer)
                assert len(server.engine.requests) > 1
            assert events_of((await client.get(path, params={"stream": "true"})).text) == events

    asyncio.run(run(start(OUTPUT)))


def test_an_isolation_without_memory_does_not_count(start, refused):
    async def run(server: Server) -> None:
        store = server.app.router._service.stored
        async with client_of(server, has_resumed=False) as client:
            with no_memory(server.app.router._service.buffers):
                await resume(server, predecessor_failed=True)
                for _ in range(10):
                    refused.clear()
                    await refused.wait()
            rows = await store.jobs()
            assert max(row.isolations for row in rows) <= 1
            assert {(await ended(client, row.id))["status"] for row in rows} == {"completed"}

    asyncio.run(begun(start(), 2))
    asyncio.run(run(start()))


def test_the_stream_of_a_resumed_response_that_fails_has_an_end(start, monkeypatch):
    monkeypatch.setattr("paged_serve.frontend.http.stored_responses.background_run.FLUSH_BYTES", 100)

    async def begin(server: Server) -> None:
        server.engine.pause_s = 0.001
        async with client_of(server) as client:
            answering = asyncio.create_task(client.post(PATH, json={"input": "hi", "stream": True, **BEHIND}))
            store = server.app.router._service.stored
            while not (jobs := await store.jobs()) or await store.num_events(jobs[0]) < 5:
                assert not answering.done()

    async def run(server: Server) -> None:
        (row,) = await server.app.router._service.stored.jobs()
        server.engine.refusal = InvalidRequest("prompt is odd", "prompt")
        async with client_of(server) as client:
            answer = await ended(client, row.id)
            assert (answer["status"], answer["error"]["message"]) == ("failed", "prompt is odd")
            events = events_of((await client.get(f"{PATH}/{row.id}", params={"stream": "true"})).text)
            assert [event["sequence_number"] for event in events] == [*range(len(events))]
            assert (events[-1]["type"], events[-1]["response"]) == ("response.failed", answer)

    asyncio.run(begin(start()))
    asyncio.run(run(start()))
