"""Steps start at once and are reported in order when the device has completed them; on the CPU, immediately."""

import select

import pytest
import torch

from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.worker import Chunk, SchedulerOutput
from paged_serve.workers.layers.decode_step import EagerDecodeStep
from paged_serve.workers.runner.completions import PassedEvent
from paged_serve.workers.runner.cuda_device import event_marker
from paged_serve.workers.runner.steps import Steps

from .test_completions import Event
from .test_steps_in_flight import model, new_row, new_runner, numbered, runner, waiting  # noqa: F401  fixtures

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

    return Steps(runner, mark)


def test_a_step_is_reported_when_the_device_has_passed_it(steps, events, waiting):  # noqa: F811
    for plan in PLANS:
        steps.launch(plan)
    assert steps.take() is None
    expected = Steps(waiting, PassedEvent)
    for plan, event in zip(PLANS, events, strict=True):
        assert steps.take() is None
        event.passed.set()
        assert select.select([steps.fd], [], [], 60)[0]
        expected.launch(plan)
        taken, wanted = steps.take(), expected.take()
        assert (taken.step, taken.token_ids, taken.logprobs) == (wanted.step, wanted.token_ids, wanted.logprobs)
    assert steps.take() is None


def test_every_size_is_prepared_once_in_the_same_order_on_all_ranks(model):  # noqa: F811
    prepared, reported = [], []

    class Sizes(EagerDecodeStep):
        sizes = (4, 2, 1)

        def prepare(self, num_rows, inputs, logits):
            prepared.append((num_rows, logits(inputs())))

    steps = Steps(new_runner(model, decode_step=Sizes()), PassedEvent)
    steps.prepare(lambda *progress: reported.append(progress))
    assert [num_rows for num_rows, _ in prepared] == [4, 2, 1]
    assert [tuple(logits.shape) for _, logits in prepared] == [(n, model.geometry.vocab_size) for n in (4, 2, 1)]
    assert len({logits.data_ptr() for _, logits in prepared}) == 1
    assert reported == [(1, 3), (2, 3), (3, 3)]


def test_a_device_that_fails_ends_the_wait_for_its_step_at_once(steps, events):
    steps.launch(PLANS[0])
    events[0].fail(RuntimeError("an illegal memory access"))
    assert select.select([steps.fd], [], [], 60)[0]
    with pytest.raises(RuntimeError, match="illegal memory access"):
        steps.take()


def test_a_cuda_device_without_our_kernels_has_passed_a_step_before_it_is_reported(runner, monkeypatch):  # noqa: F811
    """A step of a chunk alone waits for no logits, and the KV tier reads its blocks once its event has passed."""
    recorded = []

    class CudaEvent(Event):
        def __init__(self, blocking):
            super().__init__()

        def record(self):
            recorded.append(self)

    monkeypatch.setattr(torch.cuda, "Event", CudaEvent)
    steps = Steps(runner, event_marker("cuda"))
    steps.launch(PLANS[0])
    assert steps.take() is None
    recorded[0].passed.set()
    assert select.select([steps.fd], [], [], 60)[0]
    assert steps.take() is not None
