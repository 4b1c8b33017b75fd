"""Stored responses of real servers: found through every frontend, and completed whatever is killed."""

import contextlib
import time

import openai
import psutil
import pytest

from ..serving import Server, serving

STORY = {"model": "demo", "input": "Tell me a long story.", "temperature": 0.8, "max_output_tokens": 900}
NUM_TIMES = 8  # connections; all reach the same one of two frontends in one of 128 cases


def frontends(server: Server) -> list[psutil.Process]:
    children = psutil.Process(server.process.pid).children()
    return [child for child in children if "paged_serve.frontend.http.server" in child.cmdline()]


def client_of(server: Server) -> openai.OpenAI:
    """A client that makes a new connection for each request."""
    return openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=5, default_headers={"connection": "close"}
    )


def whole(client: openai.OpenAI, answer_id: str) -> openai.types.responses.Response:
    deadline = time.monotonic() + 60
    while (answer := client.responses.retrieve(answer_id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
    return answer


def events(client: openai.OpenAI, answer_id: str, after: int | None = None) -> list[dict]:
    more = {} if after is None else {"starting_after": after}
    with client.responses.retrieve(answer_id, stream=True, **more) as stream:
        return [event.model_dump() for event in stream]


def begun(client: openai.OpenAI, num_events: int) -> tuple[str, list[dict]]:
    """A background stream whose connection breaks after `num_events` events."""
    first = []
    with client.responses.create(**STORY, background=True, stream=True) as stream:
        for event in stream:
            first.append(event.model_dump())
            if len(first) == num_events:
                break
    return first[0]["response"]["id"], first


@pytest.fixture(scope="module")
def undisturbed(server) -> str:
    with client_of(server) as client:
        return client.responses.create(**STORY).output_text


def test_responses_survive_frontends_and_servers(tmp_path, undisturbed):
    stored = ("--store-responses", str(tmp_path / "stored"), "--threads", "1")
    with serving(*stored, "--api-server-count", "2", "--max-restarts", "100") as server, client_of(server) as client:
        first = client.responses.create(model="demo", input="What is the capital of France?", temperature=0)
        for _ in range(NUM_TIMES):
            assert client.responses.retrieve(first.id) == first
        answer_id, seen = begun(client, 20)
        for frontend in frontends(server):
            frontend.kill()
        found = events(client, answer_id)
        assert found[: len(seen)] == seen
        assert whole(client, answer_id).output_text == undisturbed
        for after in (0, 20, len(found) - 2):
            for _ in range(NUM_TIMES // 2):
                assert events(client, answer_id, after) == found[after + 1 :]
        unfinished, begun_events = begun(client, 20)
        processes = psutil.Process(server.process.pid).children(recursive=True)
        for process in (server.process, *processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        server.process.wait()
    with serving(*stored) as server, client_of(server) as client:
        assert whole(client, unfinished).output_text == undisturbed
        assert events(client, unfinished)[: len(begun_events)] == begun_events
        again = client.responses.create(model="demo", input="And of Italy?", previous_response_id=first.id)
        assert again.previous_response_id == first.id
        assert [item.content[0].text for item in client.responses.input_items.list(again.id)] == ["And of Italy?"]
        running = client.responses.create(**STORY, background=True)
        assert client.responses.cancel(running.id).status in ("cancelled", "completed", "incomplete")
        client.responses.delete(running.id)
        with pytest.raises(openai.NotFoundError, match="deleted"):
            client.responses.retrieve(running.id)


def test_an_unusable_folder_is_refused_at_the_start_by_name(tmp_path):
    (tmp_path / "file").write_text("")
    server = Server("--store-responses", str(tmp_path / "file"))
    try:
        assert server.process.wait(60) == 2
        assert "--store-responses" in server.output()
    finally:
        server.process.kill()
        server.process.wait()
        server.log.close()
