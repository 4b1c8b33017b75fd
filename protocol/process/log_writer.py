"""Writes log lines to stderr in a thread, so that no loop waits for the reader of stderr.

A pipe that is not read, or a terminal halted by ctrl-S, blocks its writers. A line waits in memory meanwhile; above
MAX_WAITING_BYTES further lines are dropped, and counted in the next line that is written.
"""

import contextlib
import logging
import os
import select
import threading
from queue import SimpleQueue

from ..forks import in_forked_child

MAX_WAITING_BYTES = 1 << 20
FLUSH_WITHIN_S = 0.5  # at the end of a process, if nothing reads
_STDERR = 2


class StderrHandler(logging.Handler):
    """Writes each record in one piece, in order."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: SimpleQueue[bytes | threading.Event] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._num_taken = self._num_written = 0  # bytes; the thread changes only the second
        self._num_dropped = 0  # lines
        in_forked_child(self, StderrHandler._reset)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.write(self.format(record))
        except Exception:
            self.handleError(record)

    def write(self, text: str, end: str = "\n") -> None:
        """Write a text and `end`, after the lines logged so far."""
        data = (text + end).encode(errors="backslashreplace")
        self.acquire()
        try:
            self._put(data)
        finally:
            self.release()

    def flush(self) -> None:
        """Wait until all lines are written, but not for long."""
        if self._thread is not None:
            written = threading.Event()
            self._lines.put(written)
            written.wait(FLUSH_WITHIN_S)

    def _put(self, data: bytes) -> None:
        if self._num_taken - self._num_written + len(data) > MAX_WAITING_BYTES:
            self._num_dropped += 1
            return
        if self._num_dropped:
            data = self._note_of_dropped() + data
        self._num_taken += len(data)
        self._lines.put(data)
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._write_lines, name="log", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the limit of threads is reached; the next line tries again
            self._write_next()
        else:
            self._thread = thread

    def _reset(self) -> None:
        """A forked child has no thread, and the lines are its parent's."""
        self._lines, self._thread = SimpleQueue(), None
        self._num_taken = self._num_written = self._num_dropped = 0

    def _note_of_dropped(self) -> bytes:
        text = "%d lines of this log were dropped here: standard error was not read"
        record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (self._num_dropped,), None)
        self._num_dropped = 0
        return self.format(record).encode() + b"\n"

    def _write_lines(self) -> None:
        while True:
            self._write_next()

    def _write_next(self) -> None:
        line = self._lines.get()
        if isinstance(line, threading.Event):
            line.set()
            return
        with contextlib.suppress(OSError):  # the reader is gone, or the disk is full
            _write_whole(line)
        self._num_written += len(line)


def _write_whole(data: bytes) -> None:
    while data:
        try:
            data = data[os.write(_STDERR, data) :]
        except BlockingIOError:  # another program with this pipe or terminal has set O_NONBLOCK, for all
            select.select([], [_STDERR], [])
