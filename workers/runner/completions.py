"""Wakes a loop that polls file descriptors when the device has come to a point."""

import os
import queue
import threading
from collections import deque
from typing import Protocol


class DeviceEvent(Protocol):
    """A point on a device's stream, such as torch.cuda.Event."""

    def synchronize(self) -> None:
        """Returns once the device has passed it."""
        ...


class Completions:
    """A thread that waits for events in their order, so that the loop need not; `fd` is readable while some are due."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        self._events: queue.SimpleQueue[DeviceEvent | None] = queue.SimpleQueue()
        self._outcomes: deque[Exception | None] = deque()  # of events, in their order; None: passed
        self._thread = threading.Thread(target=self._wait_for_each, name="completions", daemon=True)
        self._thread.start()

    def watch(self, event: DeviceEvent) -> None:
        self._events.put(event)

    def take(self) -> bool:
        """Whether the device has passed the next of the watched events; each is told once, in their order.

        Raises what waiting for it raised: the device has failed.
        """
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return False
        if (failure := self._outcomes.popleft()) is not None:
            raise failure
        return True

    def close(self) -> None:
        """Waits for the events that were watched."""
        self._events.put(None)
        self._thread.join()
        os.close(self.fd)

    def _wait_for_each(self) -> None:
        while (event := self._events.get()) is not None:
            failure: Exception | None = None
            try:
                event.synchronize()
            except Exception as error:  # whatever it is, it is the loop's, which `take` raises it in
                failure = error
            self._outcomes.append(failure)
            os.eventfd_write(self.fd, 1)
