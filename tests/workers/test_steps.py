"""Steps on a device: started at once, told when the device is through, in their order."""

import select

import pytest
import torch

from paged_serve.protocol.message import pack_ids
from paged_serve.protocol.worker import Chunk, SchedulerOutput
from paged_serve.workers.device_runner import EagerDecodeStep
from paged_serve.workers.steps import DeviceSteps, HostSteps

from .test_completions import Event
from .test_device_runner import model, new_row, numbered, runner, waiting  # noqa: F401  fixtures

START = SchedulerOutput(0, 0, new_rows=(new_row(0, 9),), chunks=(Chunk(0, 9),))
PLANS = numbered([START, SchedulerOutput(0, 0, decode_joins=pack_ids([0])), SchedulerOutput(0, 0)])


@pytest.fixture
def events():
    return []


@pytest.fixture
def steps(runner, events):  # noqa: F811
    def mark():
        events.append(Event())
        return events[-1]

    return DeviceSteps(runner, mark)


def test_a_step_is_told_when_the_device_has_passed_it(steps, events, waiting):  # noqa: F811
    for plan in PLANS:
        steps.launch(plan)
    assert steps.take() is None
    expected = HostSteps(waiting)
    for plan, event in zip(PLANS, events, strict=True):
        assert steps.take() is None
        event.passed.set()
        assert select.select([steps.fd], [], [], 60)[0]
        expected.launch(plan)
        told, wanted = steps.take(), expected.take()
        assert (told.step, told.token_ids, told.logprobs) == (wanted.step, wanted.token_ids, wanted.logprobs)
    assert steps.take() is None


def test_idle_time_is_used_only_when_no_step_is_under_way(steps, events, runner):  # noqa: F811
    prepared = []

    class Sizes(EagerDecodeStep):
        def unprepared(self):
            return 3 - len(prepared) or None

        def __call__(self, num_rows, run):
            prepared.append(num_rows)
            return torch.zeros(num_rows, 300)

    runner._decode_step = Sizes()
    steps.launch(PLANS[0])
    assert not steps.use_idle_time()
    events[0].passed.set()
    select.select([steps.fd], [], [], 60)
    steps.take()
    while steps.use_idle_time():
        pass
    assert prepared == [3, 2, 1]
