"""Wakes a loop that polls file descriptors when the device has passed an event."""

import os
import queue
import threading
from collections import deque
from typing import Protocol

from ..distributed.device_thread import device_thread


class DeviceEvent(Protocol):
    """A point on a device's stream, such as torch.cuda.Event."""

    def query(self) -> bool:
        """Whether the device has passed it."""
        ...

    def synchronize(self) -> None:
        """Returns once the device has passed it."""
        ...


class PassedEvent:
    """The event of a CPU step, which has completed by the time it is launched."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class Completions:
    """Reports events in order, through a file descriptor: `fd` is readable while `take` has something to report.

    A thread waits for events that have not passed when they are watched, so that the loop need not.
    """

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        self._events: queue.SimpleQueue[DeviceEvent | None] = queue.SimpleQueue()
        self._outcomes: deque[Exception | None] = deque()  # of passed or failed events, in order; None: passed
        self._num_due = 0  # events watched and not yet reported by `take`
        self._thread: threading.Thread | None = None

    def watch(self, event: DeviceEvent) -> None:
        self._num_due += 1
        if self._num_due == 1 and event.query():  # if others are due, the thread keeps the order
            self._report(None)
            return
        if self._thread is None:
            self._thread = device_thread(self._wait_for_each, "completions")
            self._thread.start()
        self._events.put(event)

    def take(self) -> bool:
        """Whether the device has passed the next watched event. Each is reported once, in order.

        If waiting for the event failed, its exception is raised here: the device has failed.
        """
        if not self._outcomes:
            return False
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return False
        self._num_due -= 1
        if (failure := self._outcomes.popleft()) is not None:
            raise failure
        return True

    def close(self) -> None:
        """Wait for all watched events and end the thread."""
        if self._thread is not None:
            self._events.put(None)
            self._thread.join()
        os.close(self.fd)

    def _wait_for_each(self) -> None:
        while (event := self._events.get()) is not None:
            failure: Exception | None = None
            try:
                event.synchronize()
            except Exception as error:  # `take` raises it again in the loop
                failure = error
            self._report(failure)

    def _report(self, failure: Exception | None) -> None:
        self._outcomes.append(failure)
        os.eventfd_write(self.fd, 1)
