"""A background response that is stored is computed, whatever happens to its connection and its adapter."""

import asyncio
import json
import threading

import pytest

from paged_serve.frontend.http.stored_responses import background_run
from paged_serve.frontend.http.stored_responses.database import Database
from paged_serve.protocol.errors import Overloaded
from paged_serve.protocol.messages.config import LoraConfig

from ....workers.tier.accidents import full_disk
from ...adapter_folders import make_adapter_folder
from ...http_server import Server
from .response_server import PATH
from .stored_server import BEHIND, client_of, created, ended, resume, stored_servers

start = pytest.fixture(stored_servers)
BODY = json.dumps({"input": "hi", **BEHIND}).encode()
KEY = "k"


async def ask_and_leave(server: Server, has_left: asyncio.Event) -> None:
    """Send the request; its client disconnects once `has_left` is set."""
    unread = [BODY]

    async def receive() -> dict:
        if unread:
            return {"type": "http.request", "body": unread.pop()}
        await has_left.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict) -> None:
        raise AssertionError(f"answered before it was stored: {message}")

    headers = [(b"host", b"localhost"), (b"idempotency-key", KEY.encode())]
    await server.app({"type": "http", "method": "POST", "path": PATH, "headers": headers}, receive, send)


def test_a_response_whose_client_leaves_while_it_is_stored_is_computed(start, monkeypatch):
    async def run():
        server, has_left = start(), asyncio.Event()
        async with client_of(server) as client:
            is_free, waits, add = threading.Event(), threading.Event(), Database.add

            def add_once_free(*arguments) -> None:  # as when another frontend writes to the file
                waits.set()
                is_free.wait()
                add(*arguments)

            monkeypatch.setattr(Database, "add", add_once_free)
            client.headers["idempotency-key"] = KEY
            leaving = asyncio.create_task(ask_and_leave(server, has_left))
            await asyncio.to_thread(waits.wait)
            has_left.set()
            is_free.set()
            await leaving
            again = (await client.post(PATH, content=BODY)).json()
            assert (await ended(client, again["id"]))["status"] == "completed"
            assert len(server.engine.requests) == 1
            assert server.admission.num_active == 0

    asyncio.run(run())


LOADING = LoraConfig(allow_loading=True)


async def begun_with_adapter(server: Server, folder: str) -> str:
    """A response of an adapter that is unloaded at once; returns its id."""
    async with client_of(server) as client:
        await client.post("/v1/load_lora_adapter", json={"lora_name": "sql", "lora_path": folder})
        begun = await created(client, model="sql", **BEHIND)
        assert (await client.post("/v1/unload_lora_adapter", json={"lora_name": "sql"})).status_code == 200
    return begun["id"]


def test_a_response_is_resumed_with_the_adapter_that_it_began_with(start, tmp_path):
    folder = make_adapter_folder(tmp_path / "sql")

    async def begin(server: Server) -> str:
        server.engine.pause_s = 1.0
        return await begun_with_adapter(server, folder)

    async def run(server: Server, answer_id: str) -> None:
        async with client_of(server) as client:
            answer = await ended(client, answer_id)
            assert (answer["status"], answer["error"], answer["model"]) == ("completed", None, "sql")
            assert [adapter.path for adapter in server.engine.adapters] == [folder]

    asyncio.run(run(start(lora=LOADING), asyncio.run(begin(start(lora=LOADING)))))


def test_a_response_that_a_full_engine_refuses_at_first_keeps_its_adapter(start, tmp_path):
    async def run():
        server = start(lora=LOADING)
        server.engine.refusal = Overloaded("full", 0.001)
        answer_id = await begun_with_adapter(server, make_adapter_folder(tmp_path / "sql"))
        server.engine.refusal = None
        async with client_of(server, has_resumed=False) as client:
            answer = await ended(client, answer_id)
            assert (answer["status"], answer["error"]) == ("completed", None)

    asyncio.run(run())


def test_a_response_waits_while_the_disk_is_full(start, monkeypatch, caplog):
    monkeypatch.setattr(background_run, "STORE_AGAIN_S", 0.001)

    async def run():
        server = start()
        async with client_of(server) as client:
            server.engine.pause_s = 0.001
            begun = await created(client, **BEHIND)
            [background] = server.app.router._service.stored.runs.values()
            with full_disk(free_bytes=0):
                while not caplog.records:
                    await asyncio.sleep(0)
                assert not background.done, caplog.text
                refused = await client.post(f"{PATH}/{begun['id']}/cancel")
                assert (refused.status_code, "stored responses cannot be used" in refused.text) == (503, True)
            answer = await ended(client, begun["id"])
            assert (answer["status"], len(server.engine.requests)) == ("completed", 1)

    asyncio.run(run())


def test_a_response_that_cannot_be_resumed_fails_once_the_disk_has_space(start, monkeypatch, caplog):
    monkeypatch.setattr(background_run, "STORE_AGAIN_S", 0.001)

    async def begin(server: Server) -> str:
        server.engine.pause_s = 1.0
        async with client_of(server) as client:
            return (await created(client, **BEHIND))["id"]

    async def run(server: Server, answer_id: str) -> None:
        async with client_of(server, has_resumed=False) as client:
            with full_disk(free_bytes=0):
                await resume(server)
                while not caplog.records:
                    await asyncio.sleep(0)
                assert (await client.get(f"{PATH}/{answer_id}")).json()["status"] == "queued"
            answer = await ended(client, answer_id)
            assert (answer["status"], "other settings" in answer["error"]["message"]) == ("failed", True)

    answer_id = asyncio.run(begin(start()))
    asyncio.run(run(start(allow_special_tokens=True), answer_id))
