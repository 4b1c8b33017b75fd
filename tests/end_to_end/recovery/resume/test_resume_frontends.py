"""A frontend is killed during streams: each client gets its whole answer, and computed tokens are used."""

import contextlib
import json
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from paged_serve.frontend.cli.http_client import HttpClient
from paged_serve.frontend.client.sync_client import Client
from paged_serve.protocol.messages.engine_core import Utility

from ...serving import Server

NUM_STREAMS = 16  # over two frontends
STORY = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 48, "temperature": 0.8, "ignore_eos": True}


def bodies() -> list[dict]:
    """Every other request is greedy; the rest have different seeds."""
    return [{**STORY, "temperature": 0.0} if i % 2 else {**STORY, "seed": i} for i in range(NUM_STREAMS)]


def text_alone(server: Server, body: dict) -> str:
    status, answer = server.post("/v1/completions", body)
    assert status == 200, answer
    return answer["choices"][0]["text"]


def kill_a_frontend(server: Server, rng: random.Random) -> None:
    victim = rng.choice(server.children("frontend.http.server"))
    with contextlib.suppress(psutil.NoSuchProcess):
        victim.send_signal(signal.SIGKILL)
        victim.wait(60)


def texts_of_streams_under_a_kill(server: Server, rng: random.Random) -> list[str]:
    """Run all streams at once; a frontend is killed after the first events of each."""
    all_begun = threading.Barrier(NUM_STREAMS + 1, timeout=120)
    killed = threading.Event()

    def stream(body: dict, num_before: int) -> str:
        events = HttpClient(server.url).stream("/v1/completions", body)
        texts = [next(events)["choices"][0]["text"] for _ in range(num_before)]
        all_begun.wait()
        assert killed.wait(120)
        texts += [event["choices"][0]["text"] for event in events]
        return "".join(texts)

    with ThreadPoolExecutor(NUM_STREAMS) as clients:
        streams = [clients.submit(stream, body, rng.randint(1, 12)) for body in bodies()]
        all_begun.wait()
        kill_a_frontend(server, rng)
        killed.set()
        return [each.result(120) for each in streams]


@pytest.mark.parametrize("num_kills", [1, pytest.param(30, marks=pytest.mark.nightly)])
def test_every_stream_is_exact_when_a_frontend_is_killed(two_frontends, num_kills):
    rng = random.Random(num_kills)
    expected = [text_alone(two_frontends, body) for body in bodies()]
    for _ in range(num_kills):
        assert texts_of_streams_under_a_kill(two_frontends, rng) == expected


def test_the_next_frontend_continues_from_the_tokens_that_the_core_had_computed(server):
    body = {**STORY, "temperature": 0.0, "max_tokens": 1500}
    with Client.connect(server.run_dir) as client:
        expected = text_alone(server, body)
        before = tokens_computed(client)
        events = HttpClient(server.url).stream("/v1/completions", body)
        texts = [next(events)["choices"][0]["text"] for _ in range(300)]
        kill_a_frontend(server, random.Random(0))
        assert "".join(texts + [event["choices"][0]["text"] for event in events]) == expected
        assert tokens_computed(client) - before <= body["max_tokens"] + 100  # tokens in flight are computed again


def tokens_computed(client: Client) -> int:
    return json.loads(client.utility(Utility.STATS))["generation_tokens"]
