"""Simulations in which some requests kill engine cores: only these requests end with an error, under any fault."""

import math
from collections import Counter

import pytest

from paged_serve.engine_core.admission import core_poison

from .world import World

FAST = (0, 1, 2, 5)
POISON = 11


@pytest.fixture(autouse=True)
def _disable_idle_turn_limit(monkeypatch):
    """The time limit of idle turns would hide a turn that is not returned."""
    monkeypatch.setattr(core_poison, "IDLE_TURN_S", math.inf)


def run(seed: int) -> Counter[str]:
    world = World(seed, POISON)
    try:
        world.run()
    except BaseException as error:
        error.add_note(f"World({seed}, {POISON}).run() at {world.counts}")
        raise
    return Counter(world.counts)


def test_only_the_request_that_kills_cores_ends_with_an_error():
    total = Counter[str]()
    for seed in FAST:
        total.update(run(seed))
    assert total["core dies of a request"] > 2 * total["gave up"] > 0, "each costs three cores at least"
    assert total["core dies"]


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_thousand_simulations_end_as_expected():
    total = Counter[str]()
    for seed in range(1000, 2000):
        total.update(run(seed))
    print(total)
