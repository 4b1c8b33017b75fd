"""Background responses over a fake engine: computed without a connection, resumed, cancelled, streamed."""

import asyncio
import random
import threading

import pytest
from openai.types.responses import Response

from paged_serve.protocol.errors import EngineDead, InvalidRequest, Overloaded

from .response_server import OUTPUT, PATH, TOOL
from .stored_server import BEHIND, client_of, created, ended, events_of, stored_servers

start = pytest.fixture(stored_servers)


def test_a_background_response_is_computed_without_a_connection(start):
    async def run():
        async with client_of(start()) as client:
            begun = await created(client, tools=[TOOL], **BEHIND)
            assert (begun["status"], begun["background"], begun["output"]) == ("queued", True, [])
            answer = await ended(client, begun["id"])
            assert answer["status"] == "completed"
            assert [item["type"] for item in answer["output"]] == ["reasoning", "message", "function_call"]
            no_stream = await client.get(f"{PATH}/{begun['id']}", params={"stream": "true"})
            assert no_stream.status_code == 400
            again = await client.post(f"{PATH}/{begun['id']}/cancel")
            assert again.json() == answer, "it had ended"

    asyncio.run(run())


def test_a_background_stream_is_read_from_any_event_during_and_after_its_computation(start):
    async def run():
        server = start(OUTPUT * 3)
        async with client_of(server) as client:
            whole = (await client.post(PATH, json={"input": "hi", "stream": True, **BEHIND})).text
            events = events_of(whole)
            assert [event["sequence_number"] for event in events] == [*range(len(events))]
            assert [event["type"] for event in events[:3]] == [
                f"response.{kind}" for kind in ("created", "queued", "in_progress")
            ]
            answer_id = events[0]["response"]["id"]
        async with client_of(start()) as client:
            path = f"{PATH}/{answer_id}"
            assert (await client.get(path)).json() == events[-1]["response"]
            assert (await client.get(path, params={"stream": "true"})).text == whole
            rng = random.Random(5)
            for after in [0, len(events) - 2, *(rng.randrange(len(events) - 1) for _ in range(5))]:
                rest = await client.get(path, params={"stream": "true", "starting_after": after})
                assert events_of(rest.text) == events[after + 1 :]
            for number in (
                "-1",
                "0" * 12 + "9" * 20,
                "0" * 5000,
            ):  # more than the file's integers, or than Python reads
                wrong = await client.get(path, params={"stream": "true", "starting_after": number})
                assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "starting_after")

    asyncio.run(run())


@pytest.mark.parametrize(("refusal", "end"), [(None, "completed"), (InvalidRequest("prompt is odd"), "failed")])
def test_a_response_cancelled_while_its_end_is_stored_keeps_that_end(start, refusal, end):
    async def run():
        server = start()
        server.engine.refusal = refusal
        async with client_of(server) as client:
            store, is_free = server.app.router._service.stored, threading.Event()
            reading = asyncio.create_task(client.post(PATH, json={"input": "hi", "stream": True, **BEHIND}))
            while not store.runs:
                await asyncio.sleep(0)
            (background,) = store.runs.values()
            store._thread.submit(is_free.wait)  # as when another frontend writes to the file
            while f"response.{end}".encode() not in b"".join(background._waiting[-1:]):
                await asyncio.sleep(0)
            cancelling = asyncio.create_task(background.cancel())
            await asyncio.sleep(0)
            is_free.set()
            await cancelling
            last = events_of((await reading).text)[-1]
            answer = (await client.get(f"{PATH}/{background.row.id}")).json()
            assert (last["type"], answer) == (f"response.{end}", last["response"])

    asyncio.run(run())


def test_a_cancelled_background_response_keeps_its_output(start):
    async def run():
        server = start("a" * 1000)
        server.engine.pause_s = 0.001
        async with client_of(server) as client:
            begun = await created(client, stream=None, **BEHIND)
            path = f"{PATH}/{begun['id']}"
            while (await client.get(path)).json()["status"] != "in_progress":
                await asyncio.sleep(0)
            answer = (await client.post(f"{path}/cancel")).json()
            Response.model_validate(answer, strict=True)
            assert answer["status"] == "cancelled"
            assert answer["output"][0]["status"] == "incomplete"
            assert server.engine.requests[-1].aborted
            assert (await client.get(path)).json() == answer
            assert (await client.post(f"{path}/cancel")).json() == answer
            assert server.admission.num_active == 0
            foreground = await created(start("x") and client, max_output_tokens=1)
            assert (await client.post(f"{PATH}/{foreground['id']}/cancel")).status_code == 400
            running = await created(client, **BEHIND)
            assert (await client.delete(f"{PATH}/{running['id']}")).json()["deleted"]
            assert (await client.get(f"{PATH}/{running['id']}")).status_code == 404
            assert server.admission.num_active == 0

    asyncio.run(run())


def test_failures_are_stored_and_a_request_to_a_full_engine_is_retried(start):
    async def run():
        server = start("ok")
        async with client_of(server) as client:
            server.engine.refusal = InvalidRequest("prompt is odd", "prompt")
            refused = await ended(client, (await created(client, **BEHIND))["id"])
            assert (refused["status"], refused["error"]) == (
                "failed",
                {"code": "invalid_prompt", "message": "prompt is odd"},
            )
            server.engine.refusal, server.engine.fails_after = None, 2
            failed = await ended(client, (await created(client, **BEHIND))["id"])
            assert failed["error"]["code"] == "server_error"
            assert "/dev/secret" not in failed["error"]["message"], "only the log may name files"
            server.engine.refusal, server.engine.fails_after = Overloaded("full", 0.001), None
            answer = await client.post(PATH, json={"input": "hi", **BEHIND})
            while len(server.engine.requests) < 5:
                await asyncio.sleep(0)
            server.engine.refusal = None
            assert (await ended(client, answer.json()["id"]))["status"] == "completed"

    asyncio.run(run())


@pytest.mark.parametrize("error", [EngineDead("it failed on this request alone"), RuntimeError("a fault")])
def test_a_response_that_fails_while_its_server_goes_on_has_an_end(start, error):
    async def run():
        server = start("ok")
        async with client_of(server) as client:
            server.engine.refusal = error
            failed = await ended(client, (await created(client, **BEHIND))["id"])
            assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")

    asyncio.run(run())


def test_one_key_has_one_background_response(start):
    async def run():
        async with client_of(start()) as client:
            client.headers["idempotency-key"] = "k"
            first = await created(client, **BEHIND)
            assert (await created(client, **BEHIND))["id"] == first["id"]
            other = await client.post(PATH, json={"input": "other", **BEHIND})
            assert (other.status_code, other.json()["error"]["param"]) == (422, "Idempotency-Key")
            answer = await ended(client, first["id"])
        async with client_of(start()) as client:
            client.headers["idempotency-key"] = "k"
            assert await created(client, **BEHIND) == answer
            keyed = await created(client, "foreground")
            assert (await client.get(f"{PATH}/{keyed['id']}")).json() == keyed

    asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
def test_a_repeated_key_has_its_background_response_while_the_server_drains(start, stream):
    async def run():
        server = start()
        async with client_of(server) as client:
            body = {"input": "hi", "stream": stream, **BEHIND}
            first = await client.post(PATH, json=body, headers={"idempotency-key": "k"})
            server.admission.draining = True
            again = await client.post(PATH, json=body, headers={"idempotency-key": "k"})
            assert again.status_code == 200, again.text
            assert again.text == first.text if stream else again.json()["id"] == first.json()["id"]
            new = await client.post(PATH, json=body, headers={"idempotency-key": "new"})
            assert new.status_code == 503

    asyncio.run(run())


def test_a_key_repeated_at_once_has_one_background_response(start):
    async def run():
        server = start()
        async with client_of(server) as client:
            client.headers["idempotency-key"] = "k"
            first, second = await asyncio.gather(*(created(client, **BEHIND) for _ in range(2)))
            assert second["id"] == first["id"]
            await ended(client, first["id"])
            assert len(server.engine.requests) == 1

    asyncio.run(run())
