"""Simulations of clients and engine together, each from one seed. A failure names it: World(seed).run() replays it."""

from collections import Counter

import pytest

from .world import FAULTS, World

FAST = range(12)


def run(seed: int) -> World:
    world = World(seed)
    try:
        world.run()
    except BaseException as error:
        error.add_note(f"World({seed}).run() at {world.counts}")
        raise
    return world


def test_every_stream_gets_its_output_alone():
    total = Counter[str]()
    for seed in FAST:
        total.update(run(seed).counts)
    assert all(total[fault] for fault in FAULTS)
    assert total["vectors"]


@pytest.mark.parametrize("seed", [5, 8])
def test_the_same_seed_leaves_the_same_trace(seed):
    assert run(seed).trace_hash == run(seed).trace_hash


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_thousand_simulations_end_as_expected():
    total = Counter[str]()
    for seed in range(1000, 2000):
        total.update(run(seed).counts)
    print(total)
