"""An engine core in a real process, and its workers."""

import pytest

from paged_serve.protocol.transport.run_dir import make_run_dir, remove_run_dir

from .engine_harness import EngineHarness
from .running_core import config


@pytest.fixture
def run_dir():
    path = make_run_dir()
    yield path
    remove_run_dir(path)


@pytest.fixture
def harness(run_dir):
    """A core that a rank, a thread of this process, cannot make wait for too long."""
    harness = EngineHarness(run_dir, config(step_timeout_s=60.0))
    yield harness
    harness.close()


@pytest.fixture
def impatient_harness(run_dir):
    harness = EngineHarness(run_dir, config(step_timeout_s=1.0))
    yield harness
    harness.close()


@pytest.fixture
def ranks():
    started = []
    yield started
    for rank in started:
        rank.kill()
