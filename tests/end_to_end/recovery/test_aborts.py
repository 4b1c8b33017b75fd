"""Aborts at random moments, thousands of times: no block is left behind, and no other stream is affected."""

import json
import random
import time

import pytest

from paged_serve.frontend.client.sync_client import Client
from paged_serve.protocol.messages.engine_core import Utility
from paged_serve.protocol.messages.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)


def generate(client: Client, prompt: list[int]) -> list[int]:
    return [token for delta in client.submit(prompt, GREEDY) for token in delta.token_ids]


def abort_at_random(client: Client, rng: random.Random, count: int) -> None:
    """Start `count` requests, each of which is dropped at once, after a few deltas, or never."""
    for _ in range(count):
        params = SamplingParams(n=rng.choice([1, 1, 1, 3]), max_tokens=rng.randint(1, 40), seed=rng.randrange(1000))
        request = client.submit([rng.randrange(300) for _ in range(rng.randint(1, 90))], params)
        deltas = iter(request)
        for _ in range(rng.choice([0, 0, 0, 1, 3])):
            next(deltas, None)
        request.abort()


def check_nothing_is_left(client: Client) -> None:
    generate(client, [1, 2, 3])  # earlier aborts have been handled by its end
    client.utility(Utility.CHECK_INVARIANTS)
    deadline = time.monotonic() + 60  # streams that other tests broke may still run
    while (stats := json.loads(client.utility(Utility.STATS)))["num_running"] or stats["num_waiting"]:
        assert time.monotonic() < deadline, stats
        time.sleep(0.02)
    client.utility(Utility.RESET_PREFIX_CACHE)
    stats = json.loads(client.utility(Utility.STATS))
    assert stats["num_free_blocks"] == stats["num_blocks"]


@pytest.mark.parametrize("count", [300, pytest.param(100_000, marks=[pytest.mark.nightly, pytest.mark.timeout(0)])])
def test_aborts_at_random_moments_leave_no_block(server, count):
    with Client.connect(server.run_dir) as client:
        before = generate(client, list(range(20, 60)))
        abort_at_random(client, random.Random(count), count)
        assert generate(client, list(range(20, 60))) == before
        check_nothing_is_left(client)
