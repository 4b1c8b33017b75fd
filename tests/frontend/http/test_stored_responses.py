"""Stored responses over a fake engine: what is found again, with which key, and how a conversation continues."""

import asyncio
import json
import random
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import httpx
import msgspec
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.response_item_list import ResponseItemList
from pydantic import TypeAdapter

from paged_serve.frontend.http.exchange.answer_ids import owner_of_answer
from paged_serve.frontend.http.exchange.auth import tenants_of
from paged_serve.frontend.http.stored_responses.database import Database, Row
from paged_serve.protocol.errors import ConfigError, InvalidRequest, Overloaded
from paged_serve.protocol.messages.config import ServerConfig

from ..http_server import Server, make_model_folder
from .test_responses import OUTPUT, PATH, TEMPLATE, TOOL, prompt

EVENT = TypeAdapter(ResponseStreamEvent)
BEHIND = {"background": True}


@pytest.fixture
def start(tmp_path):
    (tmp_path / "t.jinja").write_text(TEMPLATE)

    def start(output: str = OUTPUT, **options) -> Server:
        """Each is another process of the same server."""
        folder = make_model_folder(tmp_path / "model")
        named = {"chat_template": str(tmp_path / "t.jinja"), "store_responses": str(tmp_path / "stored"), **options}
        server = Server(folder, output, named)
        server.engine.limits = msgspec.structs.replace(server.engine.limits, max_model_len=2048)
        return server

    return start


async def resume(server: Server) -> None:
    """As each process does at its start: what an earlier one has left goes on."""
    await server.app.router.resume_responses(tenants_of(ServerConfig(**server.options)))


@asynccontextmanager
async def client_of(server: Server, key: str = "", *, has_resumed: bool = True):
    if has_resumed:
        await resume(server)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    transport = httpx.ASGITransport(app=server.app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers=headers, trust_env=False
    ) as client:
        yield client


async def created(client: httpx.AsyncClient, given: object = "hi", **fields) -> dict:
    answer = await client.post(PATH, json={"input": given, **fields})
    assert answer.status_code == 200, answer.text
    Response.model_validate(answer.json(), strict=True)
    return answer.json()


async def ended(client: httpx.AsyncClient, answer_id: str) -> dict:
    async with asyncio.timeout(10):
        while (answer := (await client.get(f"{PATH}/{answer_id}")).json())["status"] in ("queued", "in_progress"):
            await asyncio.sleep(0)
    Response.model_validate(answer, strict=True)
    return answer


def events_of(text: str) -> list[dict]:
    found = [json.loads(frame.split("data: ", 1)[1]) for frame in text.split("\n\n")[:-1]]
    for event in found:
        EVENT.validate_python(event)
    return found


def test_a_response_is_found_until_it_is_deleted(start):
    async def run():
        async with client_of(start()) as client:
            first = await created(client, tools=[TOOL], metadata={"a": "b"})
            unstored = await created(client, store=False)
        async with client_of(start()) as client:
            assert (await client.get(f"{PATH}/{first['id']}")).json() == first
            assert (first["store"], unstored["store"]) == (True, False)
            assert (await client.get(f"{PATH}/{unstored['id']}")).status_code == 404
            deleted = await client.delete(f"{PATH}/{first['id']}")
            assert deleted.json() == {"id": first["id"], "object": "response", "deleted": True}
            for method in ("GET", "DELETE"):
                gone = await client.request(method, f"{PATH}/{first['id']}")
                assert (gone.status_code, gone.json()["error"]["type"]) == (404, "NotFoundError")

    asyncio.run(run())


def test_a_stream_is_stored_before_its_last_event_is_sent(start):
    async def run():
        async with client_of(start()) as client:
            answer = await client.post(PATH, json={"input": "hi", "stream": True})
            last = events_of(answer.text)[-1]
            assert last["type"] == "response.completed"
            assert (await client.get(f"{PATH}/{last['response']['id']}")).json() == last["response"]

    asyncio.run(run())


def test_a_conversation_continues_after_a_stored_response(start):
    """The prompt is that of the whole conversation sent in one."""
    server = start()

    async def run():
        result = {"type": "function_call_output", "output": "4"}
        async with client_of(server) as client:
            first = await created(client, "2 + 2", tools=[TOOL], instructions="Brief.")
            output = [{**result, "call_id": first["output"][2]["call_id"]}]
            second = await created(client, output, previous_response_id=first["id"], store=False)
            assert second["previous_response_id"] == first["id"]
            by_reference = prompt(server)
            await created(client, [{"role": "user", "content": "2 + 2"}, *first["output"], *output], store=False)
            assert prompt(server) == by_reference
            assert "Brief." not in by_reference, "instructions are of one response"
            stored = await created(client, output, previous_response_id=first["id"])
            await created(client, "and 5?", previous_response_id=stored["id"])
            assert prompt(server).startswith(by_reference.removesuffix("<assistant>"))
            references = [{"role": "user", "content": "2 + 2"}] + [
                {"type": "item_reference", "id": item["id"]} for item in first["output"]
            ]
            await created(client, [*references[:2], {"id": references[2]["id"]}, references[3], *output])
            assert prompt(server) == by_reference

    asyncio.run(run())


def test_a_missing_part_of_a_conversation_is_named(start):
    async def run():
        async with client_of(start(), "") as client:
            first = await created(client)
            second = await created(client, previous_response_id=first["id"])
            unfinished = await client.post(PATH, json={"input": "hi", **BEHIND})
            await client.delete(f"{PATH}/{first['id']}")
            for fields, param, words in (
                ({"previous_response_id": "resp_1"}, "previous_response_id", "it was never stored"),
                ({"previous_response_id": second["id"]}, "previous_response_id", f"before {second['id']!r}"),
                ({"previous_response_id": 5}, "previous_response_id", "str"),
                ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id", "no stored response has"),
                ({**BEHIND, "store": False}, "background", "leave out store: false"),
                ({**BEHIND, "temperature": 9}, "temperature", "9"),
                ({"conversation": "c"}, "conversation", "not stored"),
            ):
                refused = await client.post(PATH, json={"input": "hi", **fields})
                error = refused.json()["error"]
                assert (refused.status_code, error["param"]) == (400, param), error
                assert words in error["message"], error
            await ended(client, unfinished.json()["id"])

    asyncio.run(run())


def test_each_key_finds_its_own_responses_in_every_run(start):
    keys = {"api_keys": ("one" * 8, "two" * 8)}

    async def run():
        async with client_of(start(**keys), "one" * 8) as client:
            mine = await created(client)
            item = {"type": "item_reference", "id": mine["output"][0]["id"]}
        async with client_of(start(**keys), "two" * 8) as client:
            assert (await client.get(f"{PATH}/{mine['id']}")).status_code == 404
            assert (await client.delete(f"{PATH}/{mine['id']}")).status_code == 404
            for fields in ({"previous_response_id": mine["id"]}, {"input": [item]}):
                assert (await client.post(PATH, json={"input": "hi", **fields})).status_code == 400
        async with client_of(start(**keys), "one" * 8) as client:
            assert (await client.get(f"{PATH}/{mine['id']}")).json() == mine

    asyncio.run(run())


def test_input_items_are_listed_in_the_clients_form(start):
    async def run():
        async with client_of(start()) as client:
            given = [{"role": role, "content": f"{role} {i}"} for i in range(4) for role in ("user", "assistant")]
            answer = await created(client, given)
            path = f"{PATH}/{answer['id']}/input_items"
            page = (await client.get(path, params={"limit": 3})).json()
            ResponseItemList.model_validate(page, strict=True)
            assert [item["content"][0]["text"] for item in page["data"]] == ["assistant 3", "user 3", "assistant 2"]
            assert page["has_more"]
            rest = (await client.get(path, params={"limit": 5, "after": page["last_id"]})).json()
            assert ([len(rest["data"]), rest["has_more"]]) == [5, False]
            whole = (await client.get(path, params={"order": "asc"})).json()["data"]
            assert whole[::-1] == page["data"] + rest["data"]
            for query in ({"limit": "0"}, {"limit": "x"}, {"after": "no"}):
                assert (await client.get(path, params=query)).json()["error"]["param"] in query
            text = await created(client, "hello")
            [item] = (await client.get(f"{PATH}/{text['id']}/input_items")).json()["data"]
            assert (item["role"], item["content"]) == ("user", [{"type": "input_text", "text": "hello"}])

    asyncio.run(run())


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
            wrong = await client.get(path, params={"stream": "true", "starting_after": "-1"})
            assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "starting_after")

    asyncio.run(run())


def test_a_response_interrupted_by_the_end_of_its_process_is_resumed_with_the_same_bytes(start, monkeypatch):
    """`asyncio.run` ends the tasks of its loop, as the end of a process does."""
    monkeypatch.setattr("paged_serve.frontend.http.stored_responses.background_run.FLUSH_BYTES", 3000)

    async def begin(server: Server, num_answered: int) -> tuple[str, str]:
        """Until so many events are sent."""
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
        asyncio.run(begin(start(OUTPUT * 3), 3))  # which leaves it unfinished once more, and another
        whole, answer = asyncio.run(read(start(OUTPUT * 3), answer_id))
        assert whole.startswith(answered)
        events = events_of(whole)
        assert [event["sequence_number"] for event in events] == [*range(len(events))]
        assert (events[-1]["response"], answer["status"]) == (answer, "completed")
        assert start().app  # the file can be opened by another process meanwhile


def test_a_request_for_a_response_that_is_not_resumed_yet_waits(start):
    request = {"input": "hi", "stream": True, **BEHIND}
    keyed = {"headers": {"idempotency-key": "one"}, "json": request}

    async def begin(server: Server) -> str:
        async with client_of(server) as client:
            server.engine.pause_s = 0.001
            answering = asyncio.create_task(client.post(PATH, **keyed))
            while not (jobs := await server.app.router._service.stored.jobs()):
                assert not answering.done()
            return jobs[0].id

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
            server.engine.refusal = Overloaded("full", 0.001)
            answer = await client.post(PATH, json={"input": "hi", **BEHIND})
            while len(server.engine.requests) < 4:
                await asyncio.sleep(0)
            server.engine.refusal = None
            assert (await ended(client, answer.json()["id"]))["status"] == "completed"

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


def test_a_response_is_owned_by_the_frontend_that_made_it(start):
    store = start().app.router._service.stored
    for index, count in ((0, 1), (2, 3), (63, 64)):
        store._index, store._num_frontends = index, count
        assert {owner_of_answer(store.new_id(1), count) for _ in range(50)} == {index}


def test_without_the_option_the_routes_name_the_option(start):
    server = start(store_responses="")
    for method, path in (("GET", "resp_1"), ("DELETE", "resp_1"), ("POST", "resp_1/cancel"), ("GET", "x/input_items")):
        answer = server.ask(method, f"{PATH}/{path}")
        assert answer.status_code == 404
        assert "--store-responses" in answer.json()["error"]["message"]


def row(caller: bytes, number: int, size: int) -> Row:
    return Row(caller, f"resp_{number}", 2**33 + number, None, b"[]", b"x" * size)


def test_the_oldest_responses_of_the_largest_caller_are_removed_first(tmp_path):
    database = Database(str(tmp_path), 100_000, 30)
    database.add(row(b"small", 0, 5_000), [("item", b"1")])
    for number in range(1, 40):
        database.add(row(b"large", number, 10_000), [])
        assert database.num_bytes() <= 100_000
    assert database.row(b"small", "resp_0") is not None
    assert [database.row(b"large", f"resp_{number}") is not None for number in (1, 31, 32, 39)] == [0, 0, 1, 1]
    database.add(row(b"small", 50, 99_000), [])
    assert database.row(b"large", "resp_39") is None
    assert database.item(b"small", "item") is None, "it went with its response"
    held = sum(size for (size,) in database._connection.execute("SELECT size FROM responses"))
    assert database.num_bytes() == held


def test_old_responses_are_removed_and_events_are_stored_once(tmp_path):
    database = Database(str(tmp_path), 1 << 20, 30)
    old = Row(b"", "resp_old", 1000, None, b"[]", b"{}")
    database.add(old, [])
    job = Row(b"", "resp_new", 2**33, None, b"[]", b"{}", job=b"job", has_events=1)
    database.add(job, [])
    assert database.row(b"", "resp_old") is None
    events = [b"data: %d\n\n" % i for i in range(10)]
    database.append_events(b"", "resp_new", 0, events[:4])
    database.append_events(b"", "resp_new", 2, events[2:7])
    database.finish(b"", "resp_new", b"whole", [], 7, events[7:])
    database.finish(b"", "resp_new", b"twice", [], 7, events[7:])
    found = []
    while more := database.events(b"", "resp_new", len(found)):
        found += more
    assert found == events
    assert database.row(b"", "resp_new").response == b"whole"
    assert database.jobs() == []


@pytest.mark.parametrize("_", range(20))
def test_several_frontends_create_the_file_at_once(tmp_path, _):
    together = threading.Barrier(4)

    def open_file() -> bytes:
        together.wait()
        database = Database(str(tmp_path), 1 << 20, 30)
        database.close()
        return database.secret

    with ThreadPoolExecutor(together.parties) as pool:
        opened = [pool.submit(open_file) for _ in range(together.parties)]
    assert len({each.result() for each in opened}) == 1


def test_a_file_of_another_version_is_refused(tmp_path):
    Database(str(tmp_path), 1 << 20, 30).close()
    connection = sqlite3.connect(tmp_path / "responses.sqlite3")
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(ConfigError, match="format 9"):
        Database(str(tmp_path), 1 << 20, 30)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--store-responses"):
        Database(str(tmp_path / "file"), 1 << 20, 30)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "responses.sqlite3").write_bytes(b"no database" * 100)
    with pytest.raises(ConfigError, match="not a database"):
        Database(str(tmp_path / "bad"), 1 << 20, 30)
