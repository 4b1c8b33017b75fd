"""Finds children that are alive but hang: silent for too long.

A child's loop sends a heartbeat every 250 ms; a child that loads sends one with its progress, such as a tensor.
"""

from collections.abc import Callable, Collection

from paged_serve.protocol.messages.config import ParallelConfig
from paged_serve.protocol.process.lifeline import is_receiving

from .child import Child, ChildState

HANG_S = 5.0  # a ready core or frontend hangs when it is silent for so long
ASLEEP_S = 1.5  # the same when all its threads sleep at two looks: none computes, or waits for a core or a disk
HALTED_S = 0.5  # the same for a process stopped by a signal: two heartbeats
SLEPT_S = 1.5  # a check so late means that the supervisor itself did not run


class HangDetector:
    """Checks all children once per iteration of the loop. Times are `time.monotonic` seconds."""

    def __init__(self, limits: ParallelConfig, now: float, is_receiving: Callable[[], bool] = is_receiving):
        """`is_receiving`: whether messages that were sent before may still arrive."""
        self._step_timeout_s, self._load_timeout_s = limits.step_timeout_s, limits.load_timeout_s
        self.is_receiving = is_receiving
        self._last_look = now

    def find_hanging(self, children: Collection[Child], now: float) -> list[Child]:
        """The children that hang, each with the reason in `failure`."""
        if now - self._last_look > SLEPT_S:  # the supervisor itself slept; heartbeats of that time are still unread
            for child in children:
                child.last_heard = now
        self._last_look = now
        return [child for child in children if self._hangs(child, now - child.last_heard)]

    def _hangs(self, child: Child, silence_s: float) -> bool:
        if child.state is ChildState.DEAD or silence_s < HALTED_S:
            return False
        if child.is_stopped():
            child.failure = f"stopped by a signal and silent for {silence_s:.1f} s"
        elif child.state in (ChildState.READY, ChildState.DRAINED) and silence_s > self._max_silence_s(child):
            child.failure = f"hangs: its loop has been silent for {silence_s:.1f} s"
        elif child.state in (ChildState.SPAWNED, ChildState.GREETED) and silence_s > self._load_timeout_s:
            child.hangs_in_load = True
            child.failure = (
                f"hangs: loading has made no progress for {silence_s:.0f} s; check the disk or the network file system "
                f"that the model is read from, or raise --load-timeout ({self._load_timeout_s:g})"
            )
        return bool(child.failure)

    def _max_silence_s(self, child: Child) -> float:
        # A worker's loop stands still during a step, whose deadline the core watches.
        if child.role == "worker":
            return self._step_timeout_s
        # One look does not tell: a child that waited for a core may have just sent its heartbeat, and sleep again. Once
        # the receiving threads sleep, too, it is read before the next look.
        slept_before = child.asleep_since == child.last_heard
        is_asleep = not child.is_at_work() and not self.is_receiving()
        child.asleep_since = child.last_heard if is_asleep else None
        return ASLEEP_S if slept_before and child.asleep_since is not None else HANG_S
