"""Measures how long a request keeps the event loop from the others."""

import asyncio
import contextlib
import gc
import json
import time
from collections.abc import Iterator

import httpx

from ...http_server import Server

TURN_S = 0.1  # processor time; the goal is half of it, on an idle machine
BEAT_S = 0.001  # without a pause, the loop would take a core while a thread works
NO_FULL_COLLECTION = 2**31 - 1
KNOWN_WORK = json.dumps(list(range(100_000)))
KNOWN_WORK_S = 0.008  # processor time on the machine that TURN_S was chosen for
ATTEMPTS = 3


@contextlib.contextmanager
def collections_as_in_a_server() -> Iterator[None]:
    """A server freezes its objects when it is ready: so here, those of other tests, a full collection of which takes
    0.2 s, are in no collection that a request causes."""
    thresholds = gc.get_threshold()
    gc.collect(1)
    gc.set_threshold(*thresholds[:2], NO_FULL_COLLECTION)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def longest_turn_s(server: Server, path: str, body: dict) -> float:
    """The longest processor time of the loop's thread between two beats of a task, while it answers."""
    data = json.dumps(body, separators=(",", ":")).encode()

    async def talk() -> float:
        turns, last = [], time.thread_time()

        async def beat() -> None:
            nonlocal last
            while True:
                turns.append(time.thread_time() - last)
                last = time.thread_time()
                await asyncio.sleep(BEAT_S)

        transport = httpx.ASGITransport(app=server.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", trust_env=False) as client:
            beating = asyncio.create_task(beat())
            await asyncio.sleep(0)
            response = await client.post(path, content=data)
            await asyncio.sleep(0)
            beating.cancel()
        assert response.status_code in (200, 400), response.text
        return max(turns)

    with collections_as_in_a_server():
        return asyncio.run(talk())


def slowness() -> float:
    """How many times longer than on an idle machine known work takes now, with other work in the core's caches."""
    began = time.thread_time()
    json.loads(KNOWN_WORK)
    return max(1.0, (time.thread_time() - began) / KNOWN_WORK_S)


def check_no_delay(server: Server, path: str, body: dict) -> None:
    """Raise AssertionError if the request itself, and no other load of the machine, blocks the loop for too long."""
    turns: list[float] = []
    while not turns or turns[-1] >= TURN_S:
        assert len(turns) < ATTEMPTS, f"turns of {turns} s"
        turns.append(longest_turn_s(server, path, body) / slowness())
    print(f"{1e3 * turns[-1]:.1f} ms")
