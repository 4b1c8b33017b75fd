"""The last message of a process that ends on a busy machine."""

import threading
from unittest.mock import Mock

import pytest

from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.process import lifecycle
from paged_serve.protocol.process.lifecycle import ChildProcess


@pytest.mark.parametrize("is_starved", [False, True], ids=["blocked", "starved"])
def test_a_process_waits_longer_for_its_last_message_while_the_thread_that_sends_it_lacks_a_core(
    monkeypatch, is_starved
):
    has_core, has_sent = threading.Event(), threading.Event()
    context = Mock(term=lambda: has_core.wait(60) and has_sent.set())
    looks = []

    def is_receiving():
        looks.append(is_starved)
        if len(looks) == 3:
            has_core.set()
        return is_starved

    monkeypatch.setattr(lifecycle, "is_receiving", is_receiving)
    monkeypatch.setattr(lifecycle, "LINGER_S", 0.0)
    child = ChildProcess("worker", "", 0, 0, None, "", Config(), context, Mock(), Mock())
    child.close()
    assert has_sent.is_set() == is_starved
    has_core.set()
