"""A background response that is stored is computed, whatever happens while it is accepted."""

import asyncio
import json
import threading

import pytest

from paged_serve.frontend.http.stored_responses.database import Database

from ...http_server import Server
from .stored_server import BEHIND, client_of, ended, stored_servers
from .test_responses import PATH

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
