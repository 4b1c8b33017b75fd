"""Requests with an Idempotency-Key, in one process: their answers, and the refused ones."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from paged_serve.frontend.http.server.app import Application

from ...http_server import Server

COMPLETION = {"prompt": ["abc", "de"], "max_tokens": 30, "n": 2, "temperature": 1, "logprobs": 1, "stream": True}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
TOKENS = {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 30, "temperature": 1, "n": 2}, "stream": True}
TEXT = "Grüße <tool_call>{…"


@contextlib.asynccontextmanager
async def client_of(server: Server, key: str = "") -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    transport = httpx.ASGITransport(app=server.app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", trust_env=False, headers=headers
    ) as client:
        yield client


def ids(stream: str) -> list[str]:
    return [line.removeprefix("id: ") for line in stream.splitlines() if line.startswith("id: ")]


def after(stream: str, number: int) -> str:
    """The bytes after an event."""
    return "".join(f"{event}\n\n" for event in stream.split("\n\n")[:-1][number:])


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT), ("/inference/v1/generate", TOKENS)],
)
@pytest.mark.parametrize(("per_delta", "burst"), [(1, 1), (2, 3), (7, 1), (100, 5)])
def test_another_frontend_continues_an_answer_for_any_portions_of_the_engine(folder, path, body, per_delta, burst):
    body = {**body, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    first, second = Server(folder, TEXT), Server(folder, TEXT)
    second.engine.per_delta, second.engine.burst = per_delta, burst
    for server in (first, second):
        server.engine.outputs = [server.tokenizer.encode(text) for text in ("one", TEXT)]
    begun = first.ask("POST", path, body, **{"Idempotency-Key": "k"})
    assert begun.status_code == 200, begun.text
    assert [event_id.split(":")[1] for event_id in ids(begun.text)] == [
        *map(str, range(1, begun.text.count("\n\n") + 1))
    ]
    assert '"error"' not in begun.text
    for number in (0, 1, 5, len(ids(begun.text)) - 1):
        event_id = ids(begun.text)[0].replace(":1", f":{number}")
        rest = second.ask("POST", path, body, **{"Idempotency-Key": "k", "Last-Event-ID": event_id})
        assert rest.text == after(begun.text, number)


def test_the_time_of_an_answer_is_that_of_its_id(folder):
    begun = Server(folder, TEXT).ask("POST", "/v1/completions", COMPLETION, **{"Idempotency-Key": "k"})
    digest = ids(begun.text)[0].partition(":")[0][-24:]
    long_ago = f"cmpl-{1_000_000_000:08x}{digest}:0"
    again = Server(folder, TEXT).ask(
        "POST", "/v1/completions", COMPLETION, **{"Idempotency-Key": "k", "Last-Event-ID": long_ago}
    )
    assert {json.loads(line[6:])["created"] for line in again.text.splitlines() if "data: {" in line} == {1_000_000_000}
    assert ids(again.text)[0] == long_ago.replace(":0", ":1")


def test_a_template_receives_the_date_of_the_answer(folder, tmp_path):
    (tmp_path / "dated.jinja").write_text("{{ strftime_now('%Y') }}{{ messages[0].content }}")
    server = Server(folder, "hello", {"chat_template": str(tmp_path / "dated.jinja")})
    begun = server.ask("POST", "/v1/chat/completions", CHAT, **{"Idempotency-Key": "k"})
    long_ago = f"chatcmpl-{1_000_000_000:08x}{ids(begun.text)[0].partition(':')[0][-24:]}:0"
    server.ask("POST", "/v1/chat/completions", CHAT, **{"Idempotency-Key": "k", "Last-Event-ID": long_ago})
    assert server.tokenizer.decode(server.engine.requests[-1].prompt_token_ids) == "2001hi"


def test_without_a_key_events_have_no_ids(folder):
    server = Server(folder, "hello")
    assert not ids(server.ask("POST", "/v1/completions", COMPLETION).text)
    chunks = server.stream("/v1/completions", {"prompt": "abc", "stream_options": {"include_usage": True}})
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}


def test_an_answer_with_a_key_contains_nothing_that_depends_on_other_requests(folder):
    answer = Server(folder, "hello").ask("POST", "/v1/completions", {"prompt": "abc"}, **{"Idempotency-Key": "k"})
    assert answer.json()["usage"]["prompt_tokens_details"] is None


def test_only_the_api_key_of_the_request_may_read_or_delete(folder):
    server = Server(folder, "hello", {"api_keys": ("one", "two")})

    async def talk() -> None:
        async with client_of(server, "one") as one, client_of(server, "two") as two:
            begun = await one.post("/v1/completions", json=COMPLETION, headers={"Idempotency-Key": "k"})
            stream = f"/v1/streams/{ids(begun.text)[0].partition(':')[0]}"
            assert (await one.get(stream)).text == begun.text
            for answer in (await two.get(stream), await two.delete(stream)):
                assert answer.status_code == 404
                assert "Repeat the POST" in answer.json()["error"]["message"]
            other = await two.post("/v1/completions", json={"prompt": "x"}, headers={"Idempotency-Key": "k"})
            assert other.status_code == 200
            assert (await one.delete(stream)).status_code == 204
            assert (await one.get(stream)).status_code == 410

    asyncio.run(talk())


def test_an_idempotency_key_belongs_to_one_request(folder):
    server = Server(folder, "hello")

    async def talk() -> None:
        async with client_of(server) as client:
            key = {"Idempotency-Key": "k"}
            first = await client.post("/v1/completions", json={"prompt": "abc"}, headers=key)
            assert (await client.post("/v1/completions", json={"prompt": "abc"}, headers=key)).content == first.content
            assert len(server.engine.requests) == 1
            for path, body in (("/v1/completions", {"prompt": "abd"}), ("/v1/chat/completions", CHAT)):
                refused = await client.post(path, json=body, headers=key)
                assert (refused.status_code, refused.json()["error"]["param"]) == (422, "Idempotency-Key")

    asyncio.run(talk())


def test_an_idempotency_key_belongs_to_one_route(folder):
    server = Server(folder, "hello", {"lenient": True})  # so that both routes accept the same body
    body = {"prompt": "abc", **CHAT}

    async def talk() -> None:
        async with client_of(server) as client:
            key = {"Idempotency-Key": "k"}
            assert (await client.post("/v1/completions", json=body, headers=key)).status_code == 200
            assert (await client.post("/v1/chat/completions", json=body, headers=key)).status_code == 422

    asyncio.run(talk())


def test_a_drain_waits_for_clients_that_still_read(folder):
    server = Server(folder, "hello")

    async def talk() -> None:
        goes_on = asyncio.Event()
        given = [{"type": "http.request", "body": json.dumps(COMPLETION).encode(), "more_body": False}]

        async def receive() -> dict:
            return given.pop() if given else await asyncio.Event().wait()

        async def send(message: dict) -> None:
            await goes_on.wait()

        headers = [(b"host", b"localhost"), (b"idempotency-key", b"k")]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b""}
        call = asyncio.create_task(server.app(scope, receive, send))
        while not server.engine.requests or server.admission.num_active:
            await asyncio.sleep(0)
        server.admission.draining = True
        assert not server.admission.drained
        goes_on.set()
        await call
        assert server.admission.drained

    asyncio.run(talk())


@pytest.mark.parametrize("path", ["/v1/completions", "/invocations"])
def test_a_draining_or_full_server_serves_stored_answers_and_refuses_the_rest_unread(folder, path):
    server = Server(folder, "hello")

    async def talk() -> None:
        async with client_of(server) as client:
            body = {"prompt": "abc", "stream": True}
            begun = await client.post(path, json=body, headers={"Idempotency-Key": "k"})
            server.admission.draining = True
            again = await client.post(path, json=body, headers={"Idempotency-Key": "k"})
            assert again.content == begun.content
            stream = f"/v1/streams/{ids(begun.text)[0].partition(':')[0]}"
            assert (await client.get(stream)).content == begun.content
            assert (await client.delete(stream)).status_code == 204
            for content in (b"not json", begun.content):
                refused = await client.post(path, content=content, headers={"Idempotency-Key": "k"})
                assert refused.status_code == 503
            assert server.admission.drained

    asyncio.run(talk())


def test_simultaneous_requests_with_one_key_run_once(folder):
    server = Server(folder, "hello")
    server.engine.pause_s = 0.001

    async def talk() -> None:
        async with client_of(server) as client:
            key = {"Idempotency-Key": "k"}
            asked = [client.post("/v1/completions", json={"prompt": "abc"}, headers=key) for _ in range(5)]
            answers = await asyncio.gather(*asked)
            assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409, 409]
            assert len(server.engine.requests) == 1

    asyncio.run(talk())


EVENT = f"cmpl-{'0' * 32}:1"


@pytest.mark.parametrize(
    ("headers", "body", "status", "message"),
    [
        ({"Idempotency-Key": ""}, COMPLETION, 400, "1 to 255 visible"),
        ({"Idempotency-Key": "a b"}, COMPLETION, 400, "1 to 255 visible"),
        ({"Idempotency-Key": "x" * 256}, COMPLETION, 400, "1 to 255 visible"),
        ({"Last-Event-ID": EVENT}, COMPLETION, 400, "needs the Idempotency-Key"),
        ({"Idempotency-Key": "k", "Last-Event-ID": "7"}, COMPLETION, 400, "id of an event"),
        ({"Idempotency-Key": "k", "Last-Event-ID": EVENT}, {"prompt": "abc"}, 400, "applies only to streams"),
        ({"Idempotency-Key": "k", "Last-Event-ID": EVENT}, COMPLETION, 422, "belongs to a request with another body"),
        ({"Idempotency-Key": "k"}, {"prompt": ""}, 400, "prompt"),
        ({"Idempotency-Key": "k"}, {"prompt": "x", "stream_options": {"include_usage": True}}, 400, "stream_options"),
    ],
)
def test_an_invalid_keyed_request_is_refused(folder, headers, body, status, message):
    server = Server(folder)
    answer = server.ask("POST", "/v1/completions", body, **headers)
    assert (answer.status_code, message in answer.json()["error"]["message"]) == (status, True), answer.text
    assert not server.engine.requests
    assert server.admission.num_active == server.admission.num_reading == 0


def test_a_request_while_a_frontend_is_replaced_waits_for_it(folder):
    server = Server(folder, "hello")
    replaced = Application(server.app.router._service.config.server, server.admission, lambda: True, router_wait_s=600)
    router, server.app = server.app.router, replaced

    async def talk() -> None:
        async with client_of(server) as client:
            assert (await client.get("/ready")).status_code == 503
            asked = asyncio.create_task(client.post("/v1/completions", json={"prompt": "abc"}))
            await asyncio.sleep(0.05)
            assert not asked.done()
            replaced.router = router
            assert (await asked).status_code == 200

    asyncio.run(talk())


def test_a_missing_stream_is_answered_with_404(folder):
    server = Server(folder)
    assert server.ask("GET", "/v1/streams/nothing").status_code == 404
    assert server.ask("DELETE", "/v1/streams/nothing").status_code == 404
    other = server.ask("GET", "/v1/streams/nothing", **{"Last-Event-ID": EVENT})
    assert other.status_code == 400
    assert set(server.ask("POST", "/v1/streams/nothing").headers["allow"].split(", ")) == {"DELETE", "GET", "HEAD"}


def test_an_engine_failure_is_reported_and_the_next_try_starts_again(folder):
    server = Server(folder, "hello")
    server.engine.fails_after = 3

    async def talk() -> None:
        async with client_of(server) as client:
            key = {"Idempotency-Key": "k"}
            broken = await client.post("/v1/completions", json={"prompt": "abc", "stream": True}, headers=key)
            assert json.loads(broken.text.split("\n\n")[-3].removeprefix("data: "))["error"]["code"] == 500
            server.engine.fails_after = None
            last = {**key, "Last-Event-ID": ids(broken.text)[-1]}
            rest = await client.post("/v1/completions", json={"prompt": "abc", "stream": True}, headers=last)
            assert rest.status_code == 200
            text = broken.text + rest.text
            chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
            assert "".join(c["choices"][0]["text"] for c in chunks if "choices" in c) == "hello"

    asyncio.run(talk())


def test_the_document_names_routes_and_headers(folder):
    paths = Server(folder).ask("GET", "/openapi.json").json()["paths"]
    for path in ("/v1/completions", "/v1/chat/completions"):
        names = [parameter["name"] for parameter in paths[path]["post"]["parameters"]]
        assert names == ["Idempotency-Key", "Last-Event-ID"]
        assert {"204", "409", "410", "422"} <= set(paths[path]["post"]["responses"])
    stream = paths["/v1/streams/{id}"]
    assert [parameter["name"] for parameter in stream["get"]["parameters"]] == ["id", "Last-Event-ID"]
    assert "410" in stream["delete"]["responses"]
