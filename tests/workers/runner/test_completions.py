"""The loop is woken once for each event, in order."""

import select
import threading

import pytest

from paged_serve.workers.runner.completions import Completions, PassedEvent


class Event:
    def __init__(self):
        self.passed = threading.Event()
        self._error = None

    def fail(self, error):
        self._error = error
        self.passed.set()

    def query(self):
        return self.passed.is_set()

    def synchronize(self):
        assert self.passed.wait(60)
        if self._error is not None:
            raise self._error


@pytest.fixture
def completions():
    made = Completions()
    yield made
    made.close()


def is_readable(completions: Completions, wait_s: float) -> bool:
    return bool(select.select([completions.fd], [], [], wait_s)[0])


def test_each_event_is_reported_once_and_in_order(completions):
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


def test_an_exception_of_a_wait_is_raised_in_order_and_later_events_are_still_awaited(completions):
    events = [Event(), Event(), Event()]
    for event in events:
        completions.watch(event)
    events[0].passed.set()
    events[1].fail(RuntimeError("the device is lost"))
    events[2].passed.set()
    for _ in events[:1]:
        assert is_readable(completions, 60)
        assert completions.take()
    assert is_readable(completions, 60)
    with pytest.raises(RuntimeError, match="the device is lost"):
        completions.take()
    assert is_readable(completions, 60)
    assert completions.take()


def test_a_passed_event_is_reported_at_once_without_a_thread(completions):
    before = threading.active_count()
    for _ in range(3):
        completions.watch(PassedEvent())
        assert completions.take()
        assert not completions.take()
    assert threading.active_count() == before


def test_a_passed_event_is_reported_after_those_before_it(completions):
    first = Event()
    completions.watch(first)
    completions.watch(PassedEvent())
    assert not completions.take()
    first.passed.set()
    for _ in range(2):
        assert is_readable(completions, 60)
        assert completions.take()
