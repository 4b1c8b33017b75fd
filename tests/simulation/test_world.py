"""Simulations of clients and engine together, each from one seed. A failure names it: World(seed).run() replays it."""

from collections import Counter

import pytest

from paged_serve.frontend.client.streams import stream_table

from .world import FAULTS, World

FAST = (2, 4, 5, 7)


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


def test_streams_too_long_for_a_frame_are_resumed_from_an_earlier_token(monkeypatch):
    monkeypatch.setattr(stream_table, "MAX_RESUMED_BYTES", 100)
    assert all(run(seed).counts["core dies"] for seed in (1, 2))


@pytest.mark.parametrize("seed", [8, pytest.param(5, marks=pytest.mark.nightly)])
def test_the_same_seed_leaves_the_same_trace(seed):
    assert run(seed).trace_hash == run(seed).trace_hash


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_thousand_simulations_end_as_expected():
    total = Counter[str]()
    for seed in range(1000, 2000):
        total.update(run(seed).counts)
    print(total)
