"""The supervisor's parts, one by one: time is an argument, so no test waits."""

import itertools
import select
import signal
import sys
from pathlib import Path

import pytest

from paged_serve.frontend.supervision.processes import child as child_module
from paged_serve.frontend.supervision.processes.child import ChildEvent, ChildState, StartInfo
from paged_serve.frontend.supervision.processes.out_of_memory import LOOK_EVERY_S, OutOfMemory
from paged_serve.frontend.supervision.processes.process_table import ProcessTable
from paged_serve.frontend.supervision.processes.restart_budget import RestartBudget
from paged_serve.frontend.supervision.processes.standby_workers import SETTLED_S, StandbyWorkers
from paged_serve.frontend.supervision.shutdown import TRANSITIONS, Phase, PhaseEvent, Shutdown, StopStep
from paged_serve.protocol.state_machine import IllegalTransition, fire

from .fake_child_state import FakeChild


class TestRestartBudget:
    def test_five_losses_a_minute_are_tolerated_and_the_sixth_is_not(self):
        budget = RestartBudget(limit=5, window_s=60.0)
        assert [budget.spend(f"loss {n}", now=float(n)) for n in range(5)] == [""] * 5
        assert budget.spend("loss 5", now=59.9) == (
            "gave up after 5 restarts in 60 s: loss 5; the first loss was: loss 0"
        )

    def test_losses_older_than_a_minute_do_not_count(self):
        budget = RestartBudget(limit=5, window_s=60.0)
        for second in range(0, 600, 12):
            assert budget.spend("again", now=float(second)) == ""

    def test_the_first_loss_is_one_of_those_that_count(self):
        budget = RestartBudget(limit=1, window_s=60.0)
        assert budget.spend("killed by an operator", now=0.0) == ""
        assert budget.spend("cannot open a file", now=86400.0) == ""
        assert budget.spend("cannot open a file", now=86401.0) == "gave up after 1 restarts in 60 s: cannot open a file"

    def test_one_loss_is_not_counted_twice(self):
        budget = RestartBudget(limit=0, window_s=60.0)
        assert budget.spend("the only one", now=0.0) == "gave up after 0 restarts in 60 s: the only one"

    def test_restarts_that_found_a_poison_request_do_not_count(self):
        budget = RestartBudget(limit=2, window_s=60.0)
        for second in range(20):
            assert budget.spend("again", now=float(second)) == ""
            assert budget.spend("again", now=float(second)) == ""
            budget.refund(2)
        budget.refund(2)
        assert [budget.spend("again", now=30.0) for _ in range(2)] == ["", ""]
        assert budget.spend("again", now=30.0) != ""


class TestMemoryShortage:
    def test_a_shortage_is_reported_once_and_only_since_the_last_look(self, tmp_path):
        vmstat = tmp_path / "vmstat"
        vmstat.write_text("nr_free_pages 5\noom_kill 3\n")
        shortage = OutOfMemory(vmstat)
        assert not shortage.ran_out()
        vmstat.write_text("nr_free_pages 5\noom_kill 4\n")
        assert shortage.ran_out()
        assert not shortage.ran_out()

    def test_an_old_shortage_is_not_named_as_a_cause(self, tmp_path):
        vmstat = tmp_path / "vmstat"
        vmstat.write_text("oom_kill 3\n")
        shortage = OutOfMemory(vmstat)
        vmstat.write_text("oom_kill 4\n")
        shortage.tick(LOOK_EVERY_S)
        assert shortage.is_known
        shortage.tick(1.5 * LOOK_EVERY_S)
        assert shortage.is_known
        shortage.tick(2 * LOOK_EVERY_S)
        assert not shortage.is_known
        assert not shortage.ran_out()

    def test_a_kernel_without_the_counter_reports_no_shortage(self, tmp_path):
        assert not OutOfMemory(tmp_path / "absent").ran_out()


class TestShutdown:
    @pytest.mark.parametrize(("phase", "event"), list(itertools.product(Phase, PhaseEvent)))
    def test_every_event_in_every_phase_has_a_row_or_changes_nothing(self, phase, event):
        shutdown = Shutdown(drain_timeout_s=1.0)
        shutdown.phase = phase
        if (phase, event) in TRANSITIONS:
            shutdown.fire(event)
            assert shutdown.phase is TRANSITIONS[phase, event]
        else:
            with pytest.raises(IllegalTransition):
                shutdown.fire(event)
            assert shutdown.phase is phase

    def serving(self) -> Shutdown:
        shutdown = Shutdown(drain_timeout_s=10.0)
        shutdown.fire(PhaseEvent.READY)
        return shutdown

    def test_shutdown_steps_come_in_order_and_once(self):
        shutdown = self.serving()
        shutdown.begin_stop(100.0, at_once=False)
        seen = {
            now: shutdown.steps_due(now, frontends_gone=False) for now in (100.0, 100.1, 100.5, 102.0, 103.0, 108.0)
        }
        assert list(seen.values()) == [
            [StopStep.ASK_FRONTENDS],
            [],
            [StopStep.ASK_ALL],
            [StopStep.TERMINATE],
            [StopStep.KILL],
            [StopStep.ABANDON],
        ]
        assert shutdown.next_deadline(109.0) == float("inf")

    def test_without_frontends_the_engine_is_asked_to_stop_at_once(self):
        shutdown = self.serving()
        shutdown.begin_stop(100.0, at_once=False)
        assert shutdown.steps_due(100.0, frontends_gone=True) == [StopStep.ASK_FRONTENDS, StopStep.ASK_ALL]
        assert shutdown.steps_due(100.6, frontends_gone=True) == []

    def test_an_immediate_stop_kills_children_without_asking(self):
        shutdown = self.serving()
        shutdown.begin_stop(100.0, at_once=True)
        assert shutdown.steps_due(100.0, frontends_gone=False) == [StopStep.KILL]

    def test_a_drain_has_one_deadline_for_frontends_and_engine_together(self):
        shutdown = self.serving()
        shutdown.begin_drain(100.0)
        assert shutdown.next_deadline(104.0) == 6.0
        shutdown.fire(PhaseEvent.FRONTENDS_DRAINED)
        assert shutdown.next_deadline(104.0) == 6.0
        assert not shutdown.drain_is_over(109.9)
        assert shutdown.drain_is_over(110.0)


class FakeTable:
    """The part of the process table that StandbyWorkers uses."""

    def __init__(self):
        self.children = [FakeChild("engine-core", ChildState.READY), FakeChild("worker", ChildState.READY)]
        self.is_complete = True

    def of_role(self, *roles: str) -> list[FakeChild]:
        return [child for child in self.children if child.role in roles]

    def spawn(self, slot: tuple[str, int], epoch: int, now: float) -> None:
        standby = FakeChild(slot[0], ChildState.SPAWNED)
        standby.index = slot[1]
        self.children.append(standby)

    def dismiss(self, child: FakeChild) -> None:
        self.children.remove(child)


class TestStandbyWorkers:
    def test_standbys_start_one_by_one_once_the_service_has_settled(self):
        table = FakeTable()
        keeper = StandbyWorkers(table, num_ranks=2, now=0.0)
        keeper.tick(SETTLED_S - 0.1)
        assert table.of_role("standby") == []
        keeper.tick(SETTLED_S)
        keeper.tick(SETTLED_S + 100)
        [first] = table.of_role("standby")
        first.state = ChildState.READY
        keeper.tick(SETTLED_S + 101)
        assert [standby.index for standby in table.of_role("standby")] == [0, 1]

    def test_no_standby_starts_during_a_recovery(self):
        table = FakeTable()
        keeper = StandbyWorkers(table, num_ranks=1, now=0.0)
        table.children[1].state = ChildState.GREETED
        keeper.tick(100.0)
        table.children[1].state = ChildState.READY
        keeper.tick(100.0 + SETTLED_S - 0.1)
        assert table.of_role("standby") == []
        keeper.tick(100.0 + SETTLED_S)
        assert len(table.of_role("standby")) == 1

    def test_six_standby_deaths_within_a_minute_end_the_attempts(self):
        table = FakeTable()
        keeper = StandbyWorkers(table, num_ranks=1, now=0.0)
        for second in range(10, 16):
            keeper.tick(float(second))
            [standby] = table.of_role("standby")
            keeper.lost(standby, float(second))
        keeper.tick(1000.0)
        assert table.of_role("standby") == []


class TestChildren:
    def test_a_standby_that_is_not_warm_is_not_used_and_frees_its_cpu(self, monkeypatch):
        monkeypatch.syspath_prepend(str(Path(__file__).parent / "fakes"))
        modules = {"worker": "fake_sleeper", "standby": "fake_sleeper"}
        table = ProcessTable(StartInfo("/nowhere", {"PYTHONPATH": ":".join(sys.path)}, -1, modules))
        table.spawn(("worker", 0), 0, 0.0)
        table.spawn(("standby", 0), 0, 0.0)
        worker, standby = table.living.values()
        table.replace([worker], 1)
        worker.process.wait(200)
        table.reap({worker.pidfd})
        assert table.spawn_missing(1.0) == []
        assert [(child.role, child.epoch) for child in table.living.values()] == [("worker", 1)]
        assert standby.process.wait(200) == -signal.SIGKILL
        for child in table.unfinished():
            table.abandon(child)

    def test_a_dead_child_has_no_transition_to_another_state(self):
        for event in ChildEvent:
            if (ChildState.DEAD, event) in child_module.TRANSITIONS:
                assert fire(child_module.TRANSITIONS, ChildState.DEAD, event, "worker 0") is ChildState.DEAD

    def test_a_successor_starts_only_when_none_of_its_role_is_left(self, monkeypatch):
        monkeypatch.syspath_prepend(str(Path(__file__).parent / "fakes"))
        start = StartInfo("/nowhere", {"PYTHONPATH": ":".join(sys.path)}, -1, {"worker": "fake_sleeper"})
        table = ProcessTable(start)
        for rank in (0, 1):
            table.spawn(("worker", rank), 0, 0.0)
        group = table.of_role("worker")
        table.replace(group, 1)
        table.spawn_missing(1.0)
        assert table.of_role("worker") == []
        assert select.select(table.handles(), [], [], 5.0)[0]
        for child in group:
            child.process.wait(200)
        assert table.reap({child.pidfd for child in group}) == []  # no child ended unexpectedly
        table.spawn_missing(2.0)
        assert [(child.index, child.epoch) for child in table.of_role("worker")] == [(0, 1), (1, 1)]
        for child in table.unfinished():
            table.abandon(child)
        assert table.is_empty
        assert table.handles() == []
