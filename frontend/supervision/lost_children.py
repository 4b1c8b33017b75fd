"""Notices the loss of a child: by its report, its end, or its silence. Each child is lost once.

One loss dismisses others: that of a worker its group, that of a core its workers. Later signs of a dismissed child are
not a second loss.
"""

import signal
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from .child_messages import ChildMessages, FailureReport, OnProgress
from .flight_recorder.recorder import FlightRecorder
from .processes.child import Child
from .processes.hang_detector import HangDetector
from .processes.process_table import ProcessTable, by_cause
from .recovery import Recovery
from .shutdown import Phase, Shutdown

if TYPE_CHECKING:
    from .control_link import ControlLink

LAST_MESSAGE_S = 0.1  # a Failed may still be in transit when its process has ended
LATEST_MESSAGE_S = 5.0  # the same while the thread that reads sockets waits for a core

GiveUp = Callable[[str, int, float], None]  # why, exit code, now


class LostChildren:
    """Finds lost children; has them replaced, or ends the service by `give_up`. Times are `time.monotonic` seconds."""

    def __init__(
        self,
        processes: ProcessTable,
        link: "ControlLink",
        child_messages: ChildMessages,
        silence: HangDetector,
        recovery: Recovery,
        recorder: FlightRecorder,
        shutdown: Shutdown,
        give_up: GiveUp,
    ):
        self._processes = processes
        self._link = link
        self._child_messages = child_messages
        self._silence = silence
        self._recovery = recovery
        self._recorder = recorder
        self._shutdown = shutdown
        self._give_up = give_up

    def read_control(self, now: float, on_progress: OnProgress | None) -> None:
        """Handle messages of children and act on failure_reports."""
        for report in self._child_messages.read(now, on_progress):
            self._act_on(report, now)

    def reap(self, readable: Iterable[int], now: float) -> None:
        """Collect the children whose handles are in `readable`."""
        for child in self._processes.reap(readable):
            if child.process.returncode == -signal.SIGKILL:
                child.memory_ran_out = self._recovery.out_of_memory.is_known
            if not child.failure and child.process.returncode > 0:
                self._await_last_message(now, child)
            self._lost(child, now)

    def find_silent(self, now: float) -> None:
        """Find children that hang or are halted."""
        for child in by_cause(self._silence.find_hanging(self._processes.living.values(), now)):
            self._lost(child, now)

    def _act_on(self, report: FailureReport, now: float) -> None:
        if report.lost_workers is not None:
            # A lost child may have reported a refusal: starting again does not help.
            self._await_last_message(now, None)
            epoch, reason = report.lost_workers.epoch, report.lost_workers.reason
            if epoch != self._recovery.engine_epoch or self._shutdown.is_over:
                return
            if report.lost_workers.refused:
                self._refuse(reason, now)
            elif not self._start_lacks_memory(now):
                self._recorder.collect(f"worker group {epoch} was lost: {reason}", now)
                self._give_up_if(self._recovery.engine_lost(f"worker group: {reason}", now, core_too=False), now)
        elif report.refused and not self._shutdown.is_over:
            self._refuse(report.child.failure, now)
        else:
            self._lost(report.child, now)

    def _refuse(self, reason: str, now: float) -> None:
        """End because a process would not start. A new start might: with changed files, or without a lost device."""
        self._give_up(reason, 2 if self._shutdown.phase is Phase.STARTING else 1, now)

    def _await_last_message(self, now: float, speaker: Child | None) -> None:
        """Read on for a while, and at least until what has reached this process is read."""
        began = time.monotonic()
        while not self._shutdown.is_over and not (speaker is not None and speaker.failure):
            waited_s = time.monotonic() - began
            is_late = waited_s >= (LATEST_MESSAGE_S if self._silence.is_receiving() else LAST_MESSAGE_S)
            if self._link.has_message_within(0.0 if is_late else max(0.01, LAST_MESSAGE_S - waited_s)):
                self.read_control(now, None)
            if is_late:
                break

    def _lost(self, child: Child, now: float) -> None:
        """Record the loss of a child; all losses are declared here."""
        if self._shutdown.is_over or not self._processes.is_current(child):
            return
        if self._start_lacks_memory(now):
            return
        if child.role != "standby":
            self._recorder.collect(child.exit_reason(), now)
        if child.hangs_in_load and child.role != "standby" and self._shutdown.phase is Phase.STARTING:
            self._give_up(child.exit_reason(), 1, now)  # no request waits for it; the error should not, either
            return
        self._give_up_if(self._recovery.child_lost(child, now, draining=self._shutdown.is_draining), now)

    def _start_lacks_memory(self, now: float) -> bool:
        """Give up a first start during which the kernel has killed a process for lack of memory: it would again."""
        if self._shutdown.phase is not Phase.STARTING or not self._recovery.out_of_memory.is_known:
            return False
        killed = [child for child in self._processes.of_role("worker", "engine-core") if child.was_killed()]
        for child in killed[:1]:
            child.memory_ran_out = True
            loads = [each.progress for each in self._processes.of_role("engine-core") if each.progress]
            at = "".join(f" ({load.text}: {load.done} of {load.total})" for load in loads)
            remedy = "use --quantization or a smaller model, or free memory"
            self._give_up(f"{child.exit_reason()}{at}; {remedy}", 2, now)
        return bool(killed)

    def _give_up_if(self, reason: str, now: float) -> None:
        if reason:
            self._give_up(reason, 1, now)
