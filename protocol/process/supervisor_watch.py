"""Continues a supervisor that a signal has halted."""

import contextlib
import logging
import os
import signal

from .lifeline import is_halted

log = logging.getLogger(__name__)

WAKE_AFTER_S = 1.0  # shorter halts are left alone


class SupervisorWatch:
    """Watches the supervisor; call `check` several times per second. Times are `time.monotonic` seconds."""

    def __init__(self, pid: int, wake: bool):
        """`pid`: the supervisor's; `wake` False: never continue it."""
        self._wake = wake
        self._pid = pid
        self._halted_since: float | None = None

    def check(self, now: float) -> None:
        """Continue the supervisor when it has been halted for long enough; a halt by a debugger is left alone."""
        if not self._wake or not is_halted(self._pid):
            self._halted_since = None
        elif self._halted_since is None:
            self._halted_since = now
        elif now - self._halted_since >= WAKE_AFTER_S:
            log.error(
                "the supervisor (pid %d) was halted %.1f s ago; continuing it (--no-wake-supervisor: never)",
                self._pid,
                now - self._halted_since,
            )
            self._halted_since = None
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGCONT)
