"""A loop is woken for each event, in their order, and only then."""

import select
import threading

import pytest

from paged_serve.workers.completions import Completions


class Event:
    def __init__(self):
        self.passed = threading.Event()

    def synchronize(self):
        assert self.passed.wait(60)


@pytest.fixture
def completions():
    made = Completions()
    yield made
    made.close()


def is_readable(completions: Completions, wait_s: float) -> bool:
    return bool(select.select([completions.fd], [], [], wait_s)[0])


def test_each_event_is_told_once_and_after_those_before_it(completions):
    first, second = Event(), Event()
    completions.watch(first)
    completions.watch(second)
    second.passed.set()
    assert not is_readable(completions, 0.05)
    assert not completions.take()
    first.passed.set()
    for _ in range(2):
        assert is_readable(completions, 60)
        assert completions.take()
    assert not is_readable(completions, 0.05)
    assert not completions.take()
