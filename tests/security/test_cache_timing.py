"""The time to the first token does not reveal whether another key has sent the same prompt before."""

import bisect
import http.client
import json
import os
import random
import time

import pytest

from ..end_to_end.serving import START_TIMEOUT_S, Server

SAMPLES = int(os.environ.get("PAGED_SERVE_TEST_TIMING_SAMPLES", 2_000))
SAMPLES_TO_SEE_IT = 200  # with shared prefixes
PROMPT_TOKENS = 400
MAX_AUC = 0.55  # 0.5 is guessing
OPTIONS = (
    "--max-model-len",
    "1040",
    "--num-blocks",
    "1024",
    "--threads",
    "1",
    "--api-key",
    "victim",
    "--api-key",
    "spy",
)


class Caller:
    """One key's connection."""

    def __init__(self, port: int, key: str):
        self._link = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def seconds(self, prompt: list[int]) -> float:
        """Until the first token of an answer of one token."""
        body = json.dumps({"prompt": prompt, "max_tokens": 1, "temperature": 0})
        began = time.perf_counter()
        self._link.request("POST", "/v1/completions", body, self._headers)
        answer = self._link.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        return time.perf_counter() - began

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *error: object) -> None:
        self._link.close()


def is_served(port: int) -> bool:
    with Caller(port, "spy") as spy:
        try:
            return spy.seconds([300]) > 0
        except AssertionError:  # 503
            return False


def auc(hits: list[float], misses: list[float]) -> float:
    """How often a hit is quicker than a miss, of all pairs: the area under the curve of guessing by the time."""
    ranked = sorted(misses)
    slower = sum(len(ranked) - bisect.bisect_right(ranked, hit) for hit in hits)
    equal = sum(bisect.bisect_right(ranked, hit) - bisect.bisect_left(ranked, hit) for hit in hits)
    return (slower + equal / 2) / (len(hits) * len(misses))


def guess(port: int, count: int) -> float:
    """The attacker sends the victim's prompt, or another one of its length, at random."""
    rng = random.Random(count)
    times: dict[bool, list[float]] = {True: [], False: []}
    with Caller(port, "victim") as victim, Caller(port, "spy") as spy:
        for number in range(count + 10):
            prompt, other = ([rng.randrange(200, 900) for _ in range(PROMPT_TOKENS)] for _ in range(2))
            hit = rng.random() < 0.5
            victim.seconds(prompt if hit else other)
            took = spy.seconds(prompt)
            if number >= 10:  # warm
                times[hit].append(took)
    return auc(times[True], times[False])


def measure(count: int, *options: str) -> float:
    server = Server(*OPTIONS, *options)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not server._find_port() or server.get("/health")[0] != 200:
            assert time.monotonic() < deadline, server.output()
            time.sleep(0.05)
        while not is_served(server.port):
            assert time.monotonic() < deadline, server.output()
            time.sleep(0.05)
        return guess(server.port, count)
    finally:
        server.kill()
        server.log.close()


def test_the_measure_distinguishes_order_from_disorder():
    rng = random.Random(1)
    assert auc([1, 2, 3], [4, 5]) == 1
    assert auc([4, 5], [1, 2, 3]) == 0
    assert auc([1, 1], [1, 1, 1]) == 0.5
    assert abs(auc(*([rng.random() for _ in range(2000)] for _ in range(2))) - 0.5) < 0.03


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_shared_prefixes_are_visible_in_response_times():
    """Or the next test would show nothing."""
    found = measure(SAMPLES_TO_SEE_IT, "--share-prefixes")
    print(f"with --share-prefixes the AUC of {SAMPLES_TO_SEE_IT} guesses is {found:.3f}")
    assert found > 0.9


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_response_times_do_not_reveal_prompts_of_another_key():
    found = measure(SAMPLES)
    print(f"the AUC of {SAMPLES} guesses is {found:.3f}")
    assert 1 - MAX_AUC <= found <= MAX_AUC
