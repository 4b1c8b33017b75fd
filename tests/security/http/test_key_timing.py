"""The time of a refusal reveals nothing about a key: neither how much of it was right nor which of many it is like."""

import math
import random
import statistics
import time
from collections.abc import Callable

import pytest

from paged_serve.frontend.http.exchange.auth import Guard
from paged_serve.frontend.http.exchange.errors import HttpError
from paged_serve.protocol.messages.config import ServerConfig

from ...frontend.http_server import Server, make_model_folder
from .test_authentication import answer

TRIES = 20_000
T_LIMIT = 4.5  # of Welch's t: one in a hundred thousand by chance
KEY = "k" * 4000  # long, so that a comparison that ends early would be seen
KEPT = 0.9  # the fraction of tries that is kept, the fastest; the others were interrupted


def welch_t(first: list[int], second: list[int]) -> float:
    spread = statistics.variance(first) / len(first) + statistics.variance(second) / len(second)
    return abs(statistics.fmean(first) - statistics.fmean(second)) / math.sqrt(spread)


def t_between(try_key: Callable[[str], object], first: str, second: str) -> float:
    """Welch's t of the times for two keys. Each try uses either key at random, so other load affects both alike."""
    rng, times = random.Random(1), {first: [], second: []}
    for number in range(TRIES + 1000):
        key = rng.choice((first, second))
        began = time.perf_counter_ns()
        try_key(key)
        took = time.perf_counter_ns() - began
        if number >= 1000:  # warm
            times[key].append(took)
    border = sorted(times[first] + times[second])[int(KEPT * TRIES)]
    return welch_t(*([took for took in taken if took <= border] for taken in times.values()))


def guard_of(*keys: str) -> Callable[[str], None]:
    guard = Guard(ServerConfig(api_keys=keys))

    def try_key(key: str) -> None:
        try:
            guard.check({"host": "localhost", "authorization": key})
        except HttpError:
            return
        raise AssertionError("a wrong key was taken")

    return try_key


def application_of(folder, *keys: str) -> Callable[[str], None]:
    application = Server(folder, options={"api_keys": keys}).app

    def try_key(key: str) -> None:
        headers = [(b"host", b"localhost"), (b"authorization", key.encode())]
        scope = {"type": "http", "method": "GET", "path": "/v1/models", "headers": headers, "query_string": b""}
        assert answer(application, scope)[0] == 401

    return try_key


def early_ending(key: str) -> Callable[[str], None]:
    """A comparison that leaks: the test must detect it, otherwise it proves nothing."""
    right = f"Bearer {key}"

    def try_key(given: str) -> None:
        for a, b in zip(given, right, strict=True):
            if a != b:
                return

    return try_key


ALMOST, NOT_AT_ALL = f"Bearer {KEY[:-1]}x", f"Bearer x{KEY[1:]}"
KEYS = [chr(97 + i % 26) * 40 + f"{i:03}" for i in range(256)]
LIKE_FIRST, LIKE_LAST = (f"Bearer {key[:-1]}x" for key in (KEYS[0], KEYS[-1]))


def test_welchs_t_distinguishes_equal_from_unequal_means():
    rng = random.Random(1)
    a, b = ([round(rng.gauss(1000, 50)) for _ in range(TRIES)] for _ in range(2))
    assert welch_t(a, b) < T_LIMIT < welch_t(a, [value + 5 for value in b])


@pytest.mark.nightly
def test_a_comparison_that_ends_early_is_detected():
    assert t_between(early_ending(KEY), ALMOST, NOT_AT_ALL) > 10 * T_LIMIT


@pytest.mark.nightly
def test_the_time_of_a_refusal_does_not_depend_on_how_much_of_a_key_was_right():
    assert t_between(guard_of(KEY), ALMOST, NOT_AT_ALL) < T_LIMIT


@pytest.mark.nightly
def test_the_time_of_a_refusal_does_not_depend_on_which_key_was_similar():
    assert t_between(guard_of(*KEYS), LIKE_FIRST, LIKE_LAST) < T_LIMIT


@pytest.mark.nightly
def test_the_time_of_a_refusal_by_the_application_does_not_depend_on_the_key(tmp_path):
    folder = make_model_folder(tmp_path / "tiny")
    assert t_between(application_of(folder, KEY), ALMOST, NOT_AT_ALL) < T_LIMIT
    assert t_between(application_of(folder, *KEYS), LIKE_FIRST, LIKE_LAST) < T_LIMIT
