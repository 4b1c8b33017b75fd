"""Two children lost at once, in every order and however it is noticed: each costs at most as much as one loss.

There are no processes and sockets: children are records, and time is an argument.
"""

import itertools
import signal
from types import SimpleNamespace

import pytest

from paged_serve.frontend.supervision import lost_children
from paged_serve.frontend.supervision.child_messages import FailureReport
from paged_serve.frontend.supervision.lost_children import LostChildren
from paged_serve.frontend.supervision.processes import process_table
from paged_serve.frontend.supervision.processes.child import Child, ChildEvent, ChildState, StartInfo
from paged_serve.frontend.supervision.processes.hang_detector import HALTED_S, HangDetector
from paged_serve.frontend.supervision.processes.process_table import ProcessTable
from paged_serve.frontend.supervision.processes.restart_budget import RestartBudget
from paged_serve.frontend.supervision.recovery import Recovery
from paged_serve.frontend.supervision.shutdown import PhaseEvent, Shutdown
from paged_serve.protocol.messages.config import ParallelConfig
from paged_serve.protocol.messages.control import Progress, WorkersLost, WorkersReplaced

TURN_S = 0.25


class FakeChild(Child):
    """Ready at once. A halted child is silent; a killed child has ended as soon as it is checked."""

    _pids = itertools.count(1)

    @classmethod
    def spawn(cls, role, index, epoch, start, now):
        pid = next(cls._pids)
        child = cls(role, index, epoch, SimpleNamespace(pid=pid, returncode=None), pid, -1, now)
        child.halted = False
        for event in (ChildEvent.HELLO, ChildEvent.READY):
            child.fire(event)
        return child

    def signal(self, number):
        self.process.returncode = -number

    def reap(self, timeout_s=None):
        self.fire(ChildEvent.DEATH)

    def is_stopped(self):
        return self.halted

    def ended_from_outside(self):
        return True

    def _exit_code(self):
        return self.process.returncode


class Harness:
    """A table of children, and a core that follows the supervisor's messages."""

    def __init__(self, tensor_parallel_size: int, *, is_starting: bool = False):
        self.sent: list[object] = []  # by the supervisor, to the core
        self.failure_reports: list[FailureReport] = []  # of children, to be read next
        self.given_up: tuple[str, int] | None = None
        self.now = 0.0
        self.slots = [
            ("frontend", 0),
            *(("worker", rank) for rank in range(tensor_parallel_size)),
            ("engine-core", 0),
        ]
        self.table = ProcessTable(StartInfo("/nowhere", {}, -1, {}))
        for slot in self.slots:
            self.table.spawn(slot, 0, self.now)
        link = SimpleNamespace(send=lambda peer, message: self.sent.append(message), has_message_within=lambda s: False)
        standbys = SimpleNamespace(lost=lambda standby, now: None)
        self.budget = RestartBudget(limit=1000, window_s=1e9)
        self.recovery = Recovery(self.table, link, standbys, self.budget)
        shutdown = Shutdown(drain_timeout_s=1.0)
        if not is_starting:
            shutdown.fire(PhaseEvent.READY)
        self.lost_children = LostChildren(
            self.table,
            link,
            SimpleNamespace(
                read=lambda now, on_progress: [self.failure_reports.pop(0) for _ in self.failure_reports[:]]
            ),
            HangDetector(ParallelConfig(), self.now),
            self.recovery,
            SimpleNamespace(collect=lambda reason, now: None),
            shutdown,
            lambda reason, code, now: setattr(self, "given_up", (reason, code)),
        )

    def halt(self, slot):
        """Make it silent; its last message is old enough for the next check to find it."""
        child = self.table.living[slot]
        child.halted, child.last_heard = True, self.now - HALTED_S

    def kill(self, slot):
        self.table.living[slot].signal(signal.SIGKILL)

    def turn(self, *, successors: bool = True):
        """One iteration, as in Supervisor._iterate. `successors`: whether dismissed children are gone by then."""
        self.now += TURN_S
        for child in self.table.living.values():
            if not child.halted and child.process.returncode is None:
                child.last_heard = self.now
        self.lost_children.read_control(self.now, None)
        ended = [child for child in self.table.unfinished() if child.process.returncode is not None]
        dismissed = [child for child in ended if not self.table.is_current(child)]
        gone = ended if successors else [child for child in ended if child not in dismissed]
        self.lost_children.reap({child.pidfd for child in gone}, self.now)
        self.lost_children.find_silent(self.now)
        self.table.spawn_missing(self.now)

    def settle(self):
        for _ in range(8):
            self.turn()

    def check(self):
        """Check that all children run, in one epoch that the core knows, and that the service has not ended."""
        assert self.given_up is None
        assert self.table.is_complete
        assert set(self.table.living) == set(self.slots)
        assert all(child.state is ChildState.READY for child in self.table.living.values())
        epochs = {child.epoch for child in self.table.of_role("worker")}
        assert epochs == {self.recovery.engine_epoch}
        [core] = self.table.of_role("engine-core")
        sent = [message.epoch for message in self.sent if isinstance(message, WorkersReplaced)]
        assert max([core.epoch, *sent]) == self.recovery.engine_epoch

    @property
    def num_restarts(self) -> int:
        return len(self.budget._spent)


@pytest.fixture
def harness(monkeypatch):
    monkeypatch.setattr(process_table, "Child", FakeChild)
    return Harness


def pairs(tensor_parallel_size: int):
    """All ordered pairs of children; two ranks represent a group."""
    ranks = [("worker", 0), ("worker", tensor_parallel_size - 1)][: min(2, tensor_parallel_size)]
    return itertools.permutations([*ranks, ("engine-core", 0), ("frontend", 0)], 2)


EARLIER = [(), (("engine-core", 0),), (("worker", 0),), (("frontend", 0),), (("engine-core", 0), ("frontend", 0))]
each_harness = pytest.mark.parametrize(
    ("size", "earlier"),
    [(size, earlier) for size in (1, 2, 4) for earlier in EARLIER],
    ids=lambda value: "+".join(role for role, _ in value) or "fresh" if isinstance(value, tuple) else f"tp{value}",
)


def prepared(harness, size, earlier):
    made = harness(size)
    for slot in earlier:
        made.kill(slot)
        made.settle()
    made.check()
    return made


@each_harness
def test_two_halted_children_found_in_one_iteration_are_replaced(harness, size, earlier):
    for pair in pairs(size):
        made = prepared(harness, size, earlier)
        before = made.num_restarts
        for slot in pair:
            made.halt(slot)
        made.settle()
        made.check()
        roles = {"frontend" if role == "frontend" else "engine" for role, _ in pair}
        assert made.num_restarts - before == len(roles), pair


@each_harness
@pytest.mark.parametrize("successors", [False, True])
def test_a_second_loss_may_be_found_while_the_first_child_is_replaced(harness, size, earlier, successors):
    for pair in pairs(size):
        made = prepared(harness, size, earlier)
        for slot in pair:
            if slot in made.table.living:  # otherwise it was dismissed with the first
                made.halt(slot)
            made.turn(successors=successors)
        made.settle()
        made.check()


@each_harness
def test_a_killed_child_and_a_halted_one_are_both_replaced(harness, size, earlier):
    for killed, halted in pairs(size):
        made = prepared(harness, size, earlier)
        made.halt(halted)
        made.kill(killed)
        made.settle()
        made.check()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_last_message_of_a_dismissed_child_does_not_count_as_a_second_loss(harness, size):
    made = prepared(harness, size, ())
    workers = made.table.of_role("worker")
    made.halt(("worker", 0))
    made.turn()
    for worker in workers:
        worker.failure = "ProtocolError: the engine core refused this worker: worker group 0; group 1 is in use"
        made.failure_reports.append(FailureReport(worker))
    made.settle()
    made.check()
    assert made.num_restarts == 1


@pytest.mark.parametrize("size", [1, 2, 4])
def test_simultaneous_failures_of_a_core_and_its_ranks_cost_one_restart(harness, size):
    made = prepared(harness, size, ())
    [core] = made.table.of_role("engine-core")
    workers = made.table.of_role("worker")
    made.failure_reports = [FailureReport(worker) for worker in workers]
    made.failure_reports.append(FailureReport(core, lost_workers=WorkersLost(0, "rank 0: it is gone")))
    for worker in workers:
        worker.failure = "RuntimeError: a rank is gone"
    made.settle()
    made.check()
    assert made.num_restarts == 1


@pytest.mark.parametrize("is_starting", [True, False])
def test_a_rank_whose_refusal_only_the_core_has_heard_ends_the_service(harness, is_starting):
    made = harness(2, is_starting=is_starting)
    [core] = made.table.of_role("engine-core")
    lost = WorkersLost(0, "max_model_len=9999 is more than the model has; lower it", refused=True)
    made.failure_reports.append(FailureReport(core, lost_workers=lost))
    made.settle()
    assert made.given_up == (lost.reason, 2 if is_starting else 1)  # a service manager starts again after a 1
    assert made.num_restarts == 0


@pytest.mark.parametrize("is_reported_by_the_other", [False, True])
def test_a_first_start_in_which_the_kernel_kills_a_rank_for_lack_of_memory_is_not_repeated(
    harness, is_reported_by_the_other
):
    made = harness(2, is_starting=True)
    made.recovery.out_of_memory = SimpleNamespace(is_known=True, ran_out=lambda: True)
    [core] = made.table.of_role("engine-core")
    core.progress = Progress("loading weights", 300, 1000)
    made.kill(("worker", 1))
    if is_reported_by_the_other:
        made.failure_reports.append(FailureReport(core, lost_workers=WorkersLost(0, "rank 0: rank 1 is gone")))
    made.settle()
    reason, exit_code = made.given_up
    assert exit_code == 2
    assert "worker 1" in reason
    assert "because memory ran out (loading weights: 300 of 1000); use --quantization" in reason
    assert made.num_restarts == 0


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_first_start_is_repeated_after_a_loss_without_a_shortage_or_without_a_kill(harness, is_killed):
    made = harness(2, is_starting=True)
    made.recovery.out_of_memory = SimpleNamespace(is_known=not is_killed, ran_out=lambda: False)
    made.table.living["worker", 1].process.returncode = -signal.SIGKILL if is_killed else 1
    made.settle()
    made.check()
    assert made.num_restarts == 1


def test_memory_is_named_as_the_cause_of_a_kill_exactly_when_the_kernel_reports_a_shortage(harness):
    made = prepared(harness, 2, ())
    for is_known in (False, True):
        [victim] = [child for child in made.table.of_role("worker") if child.index == 1]
        made.recovery.out_of_memory = SimpleNamespace(is_known=is_known, ran_out=lambda: False)
        made.kill(("worker", 1))
        made.settle()
        assert "was killed by SIGKILL" in victim.exit_reason()
        assert ("memory ran out" in victim.exit_reason()) is is_known


def test_the_reason_of_an_ended_child_is_awaited_while_its_message_may_be_unread(harness, monkeypatch):
    """The thread that reads sockets waits for a core, for longer than a message needs otherwise."""
    made, clock = harness(1), SimpleNamespace(now=0.0)
    child, lost = made.table.living["frontend", 0], made.lost_children

    def has_message_within(seconds):
        clock.now += seconds
        if clock.now < 0.5 or child.failure:
            return False
        child.failure = "no such file"
        made.failure_reports.append(FailureReport(child, refused=True))
        return True

    monkeypatch.setattr(lost_children, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(lost._link, "has_message_within", has_message_within)
    monkeypatch.setattr(lost._silence, "is_receiving", lambda: clock.now < 0.5)
    child.process.returncode = 2
    lost.reap({child.pidfd}, 0.0)
    assert made.given_up == ("no such file", 1)
