"""The engine core and the worker are killed during numbered streams: every event is that of an undisturbed run."""

import contextlib
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from ...serving import Server
from .test_resume import COMPLETION, STORY, ask, events_of, whole

NUM_STREAMS = 12
MAX_EVENTS_BEFORE = 12


def body(number: int) -> dict:
    usage = {"include_usage": True, "continuous_usage_stats": True}
    more = {"n": 1 + number % 3, "seed": number, "ignore_eos": True, "stream": True, "stream_options": usage}
    return {**STORY, "max_tokens": 40, **more}


def streams_under_a_kill(server: Server, role: str, rng: random.Random, key: str) -> list[tuple[str, bytes]]:
    """(answer id, all events) of each stream; the process is killed once all streams have begun."""
    all_begun = threading.Barrier(NUM_STREAMS + 1, timeout=120)

    def stream(number: int, num_before: int) -> tuple[str, bytes]:
        found: list[tuple[str, bytes]] = []
        with ask(server, "POST", COMPLETION, body(number), Idempotency_Key=f"{key}-{number}") as response:
            for event in events_of(response):
                found.append(event)
                if len(found) == num_before:
                    all_begun.wait()
        return found[0][0].partition(":")[0], b"".join(event for _, event in found)

    with ThreadPoolExecutor(NUM_STREAMS) as clients:
        streams = [clients.submit(stream, i, rng.randint(1, MAX_EVENTS_BEFORE)) for i in range(NUM_STREAMS)]
        all_begun.wait()
        with contextlib.suppress(psutil.NoSuchProcess):
            rng.choice(server.children(role)).send_signal(signal.SIGKILL)
        return [each.result(120) for each in streams]


@pytest.mark.parametrize("num_kills", [1, pytest.param(30, marks=pytest.mark.nightly)])
def test_no_event_changes_when_the_core_or_the_worker_dies(server, num_kills):
    rng = random.Random(num_kills)
    for kill in range(num_kills):
        role = ("engine_core", "workers")[kill % 2]
        keys = f"{num_kills}-{kill}"
        for number, (answer_id, events) in enumerate(streams_under_a_kill(server, role, rng, keys)):
            assert events.endswith(b"data: [DONE]\n\n")
            assert ask(server, "DELETE", f"/v1/streams/{answer_id}").status == 204
            headers = {"Idempotency_Key": f"{keys}-{number}", "Last_Event_ID": f"{answer_id}:0"}
            assert whole(ask(server, "POST", COMPLETION, body(number), **headers)) == events
