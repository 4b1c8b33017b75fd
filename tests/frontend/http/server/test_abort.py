"""The operator ends requests by their ids: their clients get what there is of the answer, or an error that says so."""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import pytest

from paged_serve.frontend.http.exchange.errors import HttpError

from ...fake_engine import POOLING_LIMITS
from ...http_server import Server, make_model_folder
from ..responses.stored_server import client_of, created, ended, stored_servers

PROMPT = {"prompt": "abc", "max_tokens": 60, "ignore_eos": True}
TALK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40}
PAUSE_S = 0.002  # of the engine before each token, so that a request runs for a while

start = pytest.fixture(stored_servers)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model_folder(tmp_path_factory.mktemp("models") / "tiny")


def slow(folder, **more) -> Server:
    server = Server(folder, "x" * 60, **more)
    server.engine.pause_s = PAUSE_S
    return server


@asynccontextmanager
async def asked(server: Server, path: str, body: dict, **headers: str):
    """(the task that waits for the answer, the request as the operator sees it), once it has a token."""
    transport = httpx.ASGITransport(app=server.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", trust_env=False) as client:
        task = asyncio.create_task(client.post(path, json=body, headers=headers))
        yield task, await running(server)


async def running(server: Server) -> dict:
    async with asyncio.timeout(10):
        while not (found := [each for each in await listed(server) if each["status"] == "running" or is_vector(each)]):
            await asyncio.sleep(PAUSE_S)
    (only,) = found
    return only


def is_vector(request: dict) -> bool:
    return request["answer_id"].startswith("embd")


async def listed(server: Server) -> list[dict]:
    return json.loads(await server.operators_answer("GET", "/v1/requests"))["data"]


async def abort(server: Server, name: str) -> list[dict]:
    return json.loads(await server.operators_answer("DELETE", f"/v1/requests/{name}"))["data"]


def aborted(server: Server, path: str, body: dict, **headers: str) -> httpx.Response:
    async def run() -> httpx.Response:
        async with asked(server, path, body, **headers) as (task, request):
            (ended,) = await abort(server, request["id"])
            assert ended["id"] == request["id"]
            return await task

    return asyncio.run(run())


def chunks(answer: httpx.Response) -> list[dict]:
    *events, done, _ = answer.text.split("\n\n")
    assert done.endswith("data: [DONE]")
    return [json.loads(event.split("data: ", 1)[1]) for event in events]


@pytest.mark.parametrize("name", ["id", "answer_id"])
def test_an_aborted_completion_has_its_tokens_so_far(folder, name):
    async def run():
        server = slow(folder)
        async with asked(server, "/v1/completions", PROMPT, **{"x-request-id": "mine"}) as (task, request):
            assert (request["id"], request["answer_id"]) == ("mine", "cmpl-mine")
            assert [each["id"] for each in await abort(server, request[name])] == ["mine"]
            answer = (await task).json()
            assert not await listed(server)
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == "abort"
        assert 0 < len(choice["text"]) == answer["usage"]["completion_tokens"] < 60
        assert (None, "abort") in [(index, str(reason)) for index, reason in server.engine.requests[0].aborted]
        assert 'finished_reason="abort",frontend="0",model_name="tiny"} 1.0' in await metrics(server)

    asyncio.run(run())


async def metrics(server: Server) -> str:
    return (await server.operators_answer("GET", "/metrics")).decode()


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", PROMPT), ("/v1/chat/completions", TALK)])
def test_a_stream_that_is_aborted_ends_with_the_reason(folder, path, body):
    found = chunks(aborted(slow(folder), path, {**body, "stream": True}))
    assert [chunk["choices"][0]["finish_reason"] for chunk in found[-2:]] == [None, "abort"]


def test_every_choice_of_every_prompt_is_aborted(folder):
    body = {**PROMPT, "prompt": ["a", "b"], "n": 2}
    choices = aborted(slow(folder), "/v1/completions", body).json()["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["abort"] * 4


def test_a_response_is_incomplete(folder):
    answer = aborted(slow(folder), "/v1/responses", {"input": "hi", "max_output_tokens": 40}).json()
    assert (answer["status"], answer["incomplete_details"], answer["output"][0]["status"]) == (
        *("incomplete", None, "incomplete"),
    )


@pytest.mark.parametrize(
    ("path", "body", "limits"),
    [
        ("/v1/messages", {"model": "tiny", **TALK}, {}),
        ("/v1/completions", {**PROMPT, "ignore_eos": False, "use_beam_search": True, "n": 2}, {}),
        ("/v1/embeddings", {"input": ["a"] * 30}, {"limits": POOLING_LIMITS}),
    ],
)
def test_where_an_answer_has_no_word_for_it_it_is_an_error(folder, path, body, limits):
    server = slow(folder, **limits)
    for headers in ({}, {"idempotency-key": "k"}):
        answer = aborted(server, path, body, **headers)
        assert answer.status_code == 410
        assert "operator has ended" in answer.json()["error"]["message"]
    count = len(server.engine.requests), len(server.engine.pooled)
    again = server.ask("POST", path, body, **headers)
    assert (again.status_code, again.json()["error"]) == (410, answer.json()["error"])
    assert (len(server.engine.requests), len(server.engine.pooled)) == count, "it is not computed again"


@pytest.mark.parametrize("streams", [False, True])
def test_an_aborted_answer_with_a_key_stays_aborted(folder, streams):
    async def run():
        server, body, headers = slow(folder), {**PROMPT, "stream": streams}, {"idempotency-key": "k"}
        async with asked(server, "/v1/completions", body, **headers) as (task, request):
            await abort(server, request["answer_id"])
            first = await task
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=server.app), base_url="http://localhost") as one:
            again = await one.post("/v1/completions", json=body, headers=headers)
        assert first.content == again.content
        assert b'"finish_reason":"abort"' in first.content
        assert len(server.engine.requests) == 1

    asyncio.run(run())


def test_a_background_response_is_cancelled_for_good(start):
    async def run():
        server = start("x" * 300)
        server.engine.pause_s = PAUSE_S
        async with client_of(server) as client:
            begun = await created(client, background=True)
            request = await running(server)
            assert request["id"] == request["answer_id"] == begun["id"]
            await abort(server, begun["id"])
            answer = await ended(client, begun["id"])
            assert (answer["status"], answer["output"][0]["status"]) == ("cancelled", "incomplete")
        async with client_of(start("y")) as client:
            assert (await ended(client, begun["id"])) == answer

    asyncio.run(run())


def test_several_requests_are_ended_in_vllms_form(folder):
    async def run():
        server = slow(folder)
        async with asked(server, "/v1/completions", PROMPT) as (task, request):
            body = json.dumps({"request_ids": ["unknown", request["id"]]}).encode()
            found = json.loads(await server.operators_answer("POST", "/abort_requests", body))
            assert [each["id"] for each in found["data"]] == [request["id"]]
            assert (await task).json()["choices"][0]["finish_reason"] == "abort"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("DELETE", "/v1/requests/unknown", b"", 404),
        ("POST", "/abort_requests", b"{}", 400),
        ("POST", "/abort_requests", b'{"request_ids": "x"}', 400),
    ],
)
def test_an_id_must_be_that_of_a_request(folder, method, path, body, status):
    server = Server(folder)
    with pytest.raises((HttpError, ValueError)) as refusal:
        asyncio.run(server.operators_answer(method, path, body))
    assert getattr(refusal.value, "status", 400) == status
    assert server.ask(method, path, body).status_code == (501 if method == "POST" else 404), "not for clients"
