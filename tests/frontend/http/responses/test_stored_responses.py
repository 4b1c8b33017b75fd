"""Stored responses over a fake engine: which are found, with which key, and how a conversation continues."""

import asyncio

import pytest
from openai.types.responses.response_item_list import ResponseItemList

from paged_serve.frontend.http.exchange.answer_ids import owner_of_answer

from .response_server import PATH, TOOL, prompt
from .stored_server import BEHIND, client_of, created, ended, events_of, stored_servers

start = pytest.fixture(stored_servers)


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


@pytest.mark.parametrize("path", ["", "/input_items"])
def test_a_query_with_too_many_parameters_is_refused(start, path):
    async def run():
        async with client_of(start()) as client:
            stored = await created(client)
            answer = await client.get(f"{PATH}/{stored['id']}{path}?{'&'.join(['a=b'] * 101)}")
            assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadRequestError")
            assert (await client.get(f"{PATH}/{stored['id']}{path}?{'&'.join(['a=b'] * 100)}")).status_code == 200

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
            asked = {"input": output, "previous_response_id": first["id"]}
            counted = (await client.post(f"{PATH}/input_tokens", json=asked)).json()
            assert counted["input_tokens"] == second["usage"]["input_tokens"]
            by_reference = prompt(server)
            await created(client, [{"role": "user", "content": "2 + 2"}, *first["output"], *output], store=False)
            assert prompt(server) == by_reference
            assert "Brief." not in by_reference, "instructions apply to one response"
            stored = await created(client, output, previous_response_id=first["id"])
            await created(client, "and 5?", previous_response_id=stored["id"])
            assert prompt(server).startswith(by_reference.removesuffix("<assistant>"))
            references = [{"role": "user", "content": "2 + 2"}] + [
                {"type": "item_reference", "id": item["id"]} for item in first["output"]
            ]
            await created(client, [*references[:2], {"id": references[2]["id"]}, references[3], *output])
            assert prompt(server) == by_reference

    asyncio.run(run())


@pytest.mark.parametrize("more", [{}, {"stream": True}, BEHIND, {"stream": True, **BEHIND}])
def test_a_repeated_key_has_its_answer_after_the_response_before_it_was_deleted(start, more):
    async def run():
        async with client_of(start()) as client:
            first = await created(client)
            body = {"input": "and now?", "previous_response_id": first["id"], **more}
            keyed = {"headers": {"idempotency-key": "k"}}
            answer = await client.post(PATH, json=body, **keyed)
            assert answer.status_code == 200, answer.text
            whole = answer.text
            if more == BEHIND:
                await ended(client, answer.json()["id"])
                whole = (await client.get(f"{PATH}/{answer.json()['id']}")).text
            assert (await client.delete(f"{PATH}/{first['id']}")).status_code == 200
            again = await client.post(PATH, json=body, **keyed)
            assert (again.status_code, again.text) == (200, whole)
            other = await client.post(PATH, json=body | {"input": "other"}, **keyed)
            assert (other.status_code, other.json()["error"]["param"]) == (422, "Idempotency-Key")
            new = await client.post(PATH, json=body, headers={"idempotency-key": "new"})
            assert (new.status_code, new.json()["error"]["param"]) == (400, "previous_response_id")

    asyncio.run(run())


def test_a_request_with_a_key_that_stores_nothing_does_not_need_the_file(start):
    async def run():
        server = start()
        async with client_of(server) as client:
            server.app.router._service.stored._database.close()
            client.headers["idempotency-key"] = "k"
            await created(client, store=False)
            stored = await client.post(PATH, json={"input": "hi"}, headers={"idempotency-key": "new"})
            assert stored.status_code == 503

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
                ({"previous_response_id": second["id"]}, "previous_response_id", f"which precedes {second['id']!r}"),
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
            limits = ({"limit": "0"}, {"limit": "x"}, {"limit": "000000000001000"})
            for query in (*limits, {"after": "no"}, {"order": "up"}):
                assert (await client.get(path, params=query)).json()["error"]["param"] in query
            text = await created(client, "hello")
            [item] = (await client.get(f"{PATH}/{text['id']}/input_items")).json()["data"]
            assert (item["role"], item["content"]) == ("user", [{"type": "input_text", "text": "hello"}])

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
