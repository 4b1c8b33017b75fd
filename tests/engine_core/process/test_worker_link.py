"""The core's side of the link to the workers: a message that violates the protocol ends only its worker group."""

import subprocess

import pytest

from paged_serve.engine_core.process.worker_group import GroupState
from paged_serve.engine_core.process.worker_link import WorkerLink
from paged_serve.engine_core.simulation.links import SimulatedChannel
from paged_serve.engine_core.simulation.scenarios.adapters import adapter_named
from paged_serve.protocol.messages import control, worker
from paged_serve.protocol.messages.config import ParallelConfig
from paged_serve.protocol.messages.handshake import handshake_hello
from paged_serve.protocol.messages.loading import startup
from paged_serve.protocol.messages.loading.adapters import AdapterLoaded, LoadAdapter
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.process.lifeline import is_at_work


class Clock:
    """Advances half a millisecond per call."""

    now = 0.0

    def __call__(self):
        self.now += 0.0005
        return self.now


class LinkHarness:
    def __init__(self, ranks=1):
        self.channel, self.reports, self.is_receiving = SimulatedChannel(), [], False
        self.supervisor_reads = True
        config = ParallelConfig(tensor_parallel_size=ranks)
        self.link = WorkerLink(
            self.channel,
            config,
            lambda report: self.supervisor_reads and (self.reports.append(report) or True),
            len,
            Clock(),
            lambda: self.is_receiving,
        )
        self.ranks = ranks

    def deliver(self, rank, *messages):
        self.channel.to_core.extend((b"rank %d" % rank, message) for message in messages)
        return self.link.receive(1.0)

    def bring_up(self, epoch=0):
        for rank in range(self.ranks):
            self.deliver(rank, handshake_hello("worker", rank, epoch))
        for rank in range(self.ranks):
            self.deliver(rank, ready(rank))
        for rank in range(self.ranks):
            self.deliver(rank, startup.KVCacheReady(rank))
        assert self.link.is_ready
        return self

    @property
    def reason(self):
        [lost] = [report for report in self.reports if isinstance(report, control.WorkersLost)]
        assert self.link.group.state is GroupState.LOST
        return lost.reason


def ready(rank):
    return startup.WorkerReady(rank, 10, 16, 1, 100, 100, (1,), "float32", "cpu", 1, 0.1)


def answer(step, epoch=0):
    return worker.ModelRunnerOutput(epoch, step, pack_ids([1]), 0.1)


def test_a_duplicate_result_ends_the_group_and_counts_once():
    harness = LinkHarness().bring_up()
    harness.link.group.step_sent(1, 5, 0.0)
    assert harness.deliver(0, answer(1), answer(1)) == [answer(1)]
    assert "answers step 1; [] are in flight" in harness.reason
    harness.link.replace(1)
    harness.bring_up(epoch=1)


@pytest.mark.parametrize(
    ("rank", "message", "words"),
    [
        (0, answer(2), "answers step 2; [1] are in flight"),
        (1, answer(1), "which only rank 0 does"),
        (0, answer(1, epoch=3), "answers for epoch 3"),
        (0, ready(0), "loaded weights while the group is READY"),
        (0, startup.KVCacheReady(0), "its KV cache while the group is READY"),
        (0, startup.LoadProgress(1, 1, 2), "message names rank 1"),
        (1, worker.WorkerFailed(0, "it was the other"), "message names rank 0"),
    ],
)
def test_a_message_that_is_illegal_in_this_state_ends_the_group(rank, message, words):
    harness = LinkHarness(ranks=2).bring_up()
    harness.link.group.step_sent(1, 5, 0.0)
    assert harness.deliver(rank, message) == []
    assert words in harness.reason


@pytest.mark.parametrize("refused", [False, True])
def test_the_supervisor_is_told_whether_a_failed_rank_would_start(refused):
    harness = LinkHarness()
    harness.deliver(0, handshake_hello("worker", 0, 0))
    harness.deliver(0, worker.WorkerFailed(0, "no such model", refused))
    reason = "no such model" if refused else "rank 0: no such model"
    assert harness.reports == [control.WorkersLost(0, reason, refused)]


@pytest.mark.parametrize("again", [ready(0), startup.KVCacheReady(0), ready(7)])
def test_a_second_message_while_the_group_starts_ends_it(again):
    harness = LinkHarness()
    harness.deliver(0, handshake_hello("worker", 0, 0))
    harness.deliver(0, ready(0), again, again)
    harness.deliver(0, startup.KVCacheReady(0))
    assert harness.reason


def test_an_iteration_ends_after_two_milliseconds_and_the_next_handles_the_rest():
    harness = LinkHarness().bring_up()
    for step in range(1, 9):
        harness.link.group.step_sent(step, 5, 0.0)
    first = harness.deliver(0, *(answer(step) for step in range(1, 9)))
    assert 1 <= len(first) < 8
    rest = []
    while more := harness.link.receive(1.0):
        rest += more
    assert [each.step for each in (*first, *rest)] == list(range(1, 9))


def test_a_load_that_takes_longer_than_any_step_may_ends_the_group():
    """The engine then loads the adapter alone, and refuses it if that hangs, too."""
    harness = LinkHarness(ranks=2).bring_up()
    longest_s = harness.link.times.longest_s
    for place, name in enumerate("ab", start=1):
        harness.link.send_load(LoadAdapter(place, adapter_named(name)), 1.0)
    for rank in (0, 1):
        harness.deliver(rank, AdapterLoaded(rank, 1, adapter_named("a").digest))
    harness.deliver(0, AdapterLoaded(0, 2, adapter_named("b").digest))
    harness.link.group.shift_deadline(5.0)
    harness.link.check_deadline(6.0 + longest_s)
    assert harness.link.is_ready
    harness.link.check_deadline(6.1 + longest_s)
    assert harness.reason == "LoRA adapter 'b' is not loaded after 300 s"


def test_the_loss_of_a_group_is_reported_once_the_supervisor_reads_again():
    """No other process may notice: a rank that violates the protocol still runs."""
    harness = LinkHarness().bring_up()
    harness.supervisor_reads = False
    harness.deliver(0, answer(1))
    harness.link.check_deadline(1.0)
    assert harness.reports == []
    harness.supervisor_reads = True
    for now in (1.0, 2.0):
        harness.link.check_deadline(now)
    assert "answers step 1" in harness.reason


@pytest.fixture
def sleeper():
    """A process that sleeps, as a worker does that has sent its answer."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        while is_at_work(process.pid):
            pass
        yield process.pid
        process.kill()


def test_an_answer_that_lies_unread_at_the_deadline_loses_no_worker(sleeper):
    harness = LinkHarness().bring_up()
    group, longest_s = harness.link.group, harness.link.times.longest_s
    group.pids[0] = sleeper
    for step, is_receiving in ((1, False), (2, True)):
        harness.is_receiving = is_receiving
        began = 1000.0 * step
        group.step_sent(step, 5, began)
        for late_s in (0.01, 0.04, 0.07)[: 1 + 2 * is_receiving]:  # as long as the threads for sockets are at work
            harness.link.check_deadline(began + longest_s + late_s)
            assert harness.link.is_ready
        assert harness.deliver(0, answer(step)) == [answer(step)]


@pytest.mark.parametrize("is_receiving", [False, True])
def test_workers_that_sleep_without_an_answer_are_lost_soon_after_the_deadline(sleeper, is_receiving):
    harness = LinkHarness().bring_up()
    harness.is_receiving = is_receiving
    group, longest_s = harness.link.group, harness.link.times.longest_s
    group.pids[0] = sleeper
    group.step_sent(1, 5, 0.0)
    while harness.link.is_ready:
        now = group.deadline
        assert now < longest_s + 1.1
        harness.link.check_deadline(now)
    assert "all its threads sleep" in harness.reason
    assert is_receiving or now < longest_s + 0.1
