"""A pool of a few helper processes of one kind, for any number of callers."""

import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Callable

import msgspec

from paged_serve.protocol.errors import EngineDead, PagedServeError
from paged_serve.protocol.forks import in_forked_child

from .helper_process import Answer, HelperProcess

MAX_PROCESSES = 4  # all but the first are started only when the others are busy
IDLE_S = 30.0  # idle for so long, all but one end
TRIES = 3  # a request survives the loss of a helper that was killed from outside


class OutOfTime(Exception):
    """The answer takes more processor time than a helper may use."""


class HelperPool:
    """Starts a helper when there is work and all others are busy.

    The kernel kills a helper that computes for too long; the next request gets a new one.
    """

    def __init__(self, start: Callable[[], HelperProcess], purpose: str, idle_s: float = IDLE_S):
        """`purpose`: what the processes do, as in "the process that renders chat templates"."""
        self._start = start
        self._purpose = purpose
        self._idle_s = idle_s
        self.places: queue.LifoQueue[HelperProcess | None] = queue.LifoQueue()  # last in, first out
        for _ in range(MAX_PROCESSES):
            self.places.put(None)
        self._timer: threading.Timer | None = None  # runs while there may be helpers to end
        self._timer_lock = threading.Lock()
        self.finalizer = weakref.finalize(self, _end_all, self.places)
        in_forked_child(self, lambda pool: pool.finalizer.detach())

    def start(self) -> None:
        """Start the first helper before a request needs it.

        Raises the exceptions of `start`, and PagedServeError when no helper answers.
        """
        process = self.places.get()
        try:
            process = process or self._start()
        except (OSError, EOFError) as error:
            raise PagedServeError(f"the process that {self._purpose} does not start: {error!r}") from None
        finally:
            self.places.put(process)

    def ask(self, message: msgspec.Struct, answer: type[Answer]) -> Answer:
        """Send `message` to a helper and wait for its answer.

        Raises OutOfTime, EngineDead after `close`, and PagedServeError when no helper answers.
        """
        for _ in range(TRIES):
            if (found := self._try(message, answer)) is not None:
                return found
        raise PagedServeError(f"the process that {self._purpose} ends repeatedly or does not answer")

    def _try(self, message: msgspec.Struct, answer: type[Answer]) -> Answer | None:
        """The answer; None when the helper ended through no fault of the request."""
        process = self.places.get()
        try:
            if not self.finalizer.alive:
                raise EngineDead(f"the process that {self._purpose} is closed")
            process = process or self._start()
            found = process.ask(message, answer)
            process.used_at = time.monotonic()
            return found
        except (OSError, EOFError):
            out_of_time = process is not None and process.close()
            process = None
            if out_of_time:
                raise OutOfTime from None
            return None
        except BaseException:  # ctrl-C, for instance: the answer is still to come, and the next request would take it
            if process is not None:
                process.close()
            process = None
            raise
        finally:
            self.places.put(process)
            self._end_idle_later()

    def _end_idle_later(self) -> None:
        with self._timer_lock:
            several = sum(process is not None for process in [*self.places.queue]) > 1
            if several and self._timer is None and self.finalizer.alive:
                self._timer = threading.Timer(self._idle_s, _end_idle, (weakref.ref(self),))
                self._timer.daemon = True
                self._timer.start()

    def end_idle(self) -> None:
        """End all idle helpers but one; busy helpers are left alone."""
        with self._timer_lock:
            self._timer = None
        long_ago = time.monotonic() - self._idle_s
        taken = list[HelperProcess | None]()  # the most recently used first
        with contextlib.suppress(queue.Empty):
            while True:
                taken.append(self.places.get_nowait())
        helpers = [process for process in taken if process is not None]
        idle = [process for process in helpers[1:] if process.used_at <= long_ago]
        kept = [None if process in idle else process for process in taken]
        for process in reversed(kept):
            self.places.put(process)
        for process in idle:
            process.close()
        self._end_idle_later()

    def close(self) -> None:
        """End all helpers. A later `ask` is refused."""
        self.finalizer()
        with self._timer_lock:
            if self._timer is not None:
                self._timer.cancel()


def _end_idle(pool: "weakref.ref[HelperPool]") -> None:
    if (found := pool()) is not None:
        found.end_idle()


def _end_all(places: "queue.LifoQueue[HelperProcess | None]") -> None:
    taken = list[HelperProcess | None]()
    with contextlib.suppress(queue.Empty):
        while True:
            taken.append(places.get_nowait())
    for process in taken:
        if process is not None:
            process.close()
        places.put(None)  # a caller that comes too late would wait for a place forever
