"""A frontend that replaces another may find that the file of stored responses cannot be opened any more."""

import asyncio
import logging

import pytest

from paged_serve.protocol.errors import ConfigError

from .response_server import PATH
from .stored_server import BEHIND, client_of, created, ended, resume, stored_servers

start = pytest.fixture(stored_servers)
ASK = {"input": "hi"}
KEY = "a-key-of-mine-of-many-characters"


@pytest.fixture
def lost(tmp_path, monkeypatch):
    """A function that makes the file unusable, and one that brings it back."""
    monkeypatch.setattr("paged_serve.frontend.http.stored_responses.store.STORE_AGAIN_S", 0.01)
    folder, away, unusable, link = (tmp_path / name for name in ("stored", "away", "unusable", "link"))

    def lose() -> None:
        folder.rename(away)
        (unusable / "responses.sqlite3").mkdir(parents=True)
        folder.symlink_to(unusable)

    def restore() -> None:
        link.symlink_to(away)
        link.replace(folder)  # at once, or the server would make a new file between two steps

    return lose, restore


def test_a_first_start_is_refused(start, lost):
    start()
    lost[0]()
    with pytest.raises(ConfigError, match="cannot be used"):
        start()


@pytest.mark.parametrize("key", ["", KEY])
def test_a_replacement_serves_everything_else(start, lost, caplog, key):
    keys = {"api_keys": (key,)} if key else {}

    async def run():
        async with client_of(start("x", **keys), key) as client:
            begun = await created(client)
        lost[0]()
        with caplog.at_level(logging.ERROR):
            server = start("y", is_replacement=True, **keys)
        assert "cannot be used" in caplog.text
        resuming = asyncio.create_task(resume(server))
        async with client_of(server, key, has_resumed=False) as client:
            for answer in (
                await client.get(f"{PATH}/{begun['id']}"),
                await client.delete(f"{PATH}/{begun['id']}"),
                await client.post(PATH, json=ASK | BEHIND),
                await client.post(PATH, json=ASK),
                await client.post(PATH, json=ASK | {"previous_response_id": begun["id"], "store": False}),
            ):
                assert answer.status_code == 503, answer.text
                assert "cannot be used" in answer.text
                assert "/" not in answer.json()["error"]["message"], "the client is not shown the path"
            answer = await created(client, store=False)
            assert answer["output"][0]["content"][0]["text"] == "y"
            counted = await client.post(f"{PATH}/input_tokens", json=ASK)
            text = await client.post("/v1/completions", json={"prompt": "x"})
            assert (counted.status_code, text.status_code) == (200, 200)
            lost[1]()
            await resuming
            assert (await client.get(f"{PATH}/{begun['id']}")).json() == begun
            await created(client, previous_response_id=begun["id"])

    asyncio.run(run())


def test_unfinished_responses_are_computed_once_the_file_is_back(start, lost):
    async def run():
        server = start("x" * 300)
        server.engine.pause_s = 0.01
        async with client_of(server) as client:
            begun = await created(client, **BEHIND)
        lost[0]()
        server = start("y", is_replacement=True)
        resuming = asyncio.create_task(resume(server))
        async with client_of(server, has_resumed=False) as client:
            assert (await client.get(f"{PATH}/{begun['id']}")).status_code == 503
            lost[1]()
            await resuming
            assert (await ended(client, begun["id"]))["status"] == "completed"

    asyncio.run(run())
