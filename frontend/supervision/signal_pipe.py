"""Brings signals and requests of other threads to the supervisor's loop, as bytes in a pipe that it polls."""

import contextlib
import enum
import os
import signal
from collections.abc import Iterator

from paged_serve.protocol.forks import in_forked_child

REPORT_SIGNAL = signal.SIGUSR1  # makes the flight recorder write a bundle
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, REPORT_SIGNAL)


class Request(enum.IntEnum):
    """A thread's request to the loop, as one byte; smaller values are signal numbers, written by the kernel."""

    DRAIN = 254
    STOP = 255


class SignalPipe:
    """A pipe: `readable` for the poller, `ask` from anywhere, `taken` for the loop."""

    def __init__(self) -> None:
        self.readable, self._writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        in_forked_child(self, SignalPipe.close)  # a stop of the child would otherwise stop this process

    def ask(self, request: Request | signal.Signals) -> None:
        """Safe in signal handlers and threads, and after `close`."""
        with contextlib.suppress(OSError):  # full: the loop wakes anyway
            os.write(self._writable, bytes([request]))

    def taken(self) -> list[Request | signal.Signals]:
        """The requests and signals since the last call."""
        try:
            data = os.read(self.readable, 256)
        except BlockingIOError:
            return []
        return [Request(byte) if byte >= Request.DRAIN else signal.Signals(byte) for byte in data]

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Context in which signals only wake the loop. Main thread only.

        A SIGHUP that was ignored stays ignored, for nohup. SIGINT does not: shells ignore it in a script's background
        processes (`&`), and `kill -INT` must still end a server. Nor does a signal that the parent has blocked.
        """
        handled = [
            number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
        ]
        previous_fd = signal.set_wakeup_fd(self._writable, warn_on_full_buffer=False)
        previous = {number: signal.signal(number, lambda *_: None) for number in handled}
        previous_mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
            for number, handler in previous.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(previous_fd)

    def close(self) -> None:
        if self._writable >= 0:
            os.close(self.readable)
            os.close(self._writable)
            self.readable = self._writable = -1
