"""Loads adapters in a thread while steps run, which never wait for it."""

import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.loading.adapters import AdapterLoaded, LoadAdapter
from paged_serve.protocol.messages.message import MAX_LONG_TEXT

from ..distributed.device_thread import device_thread
from ..distributed.threads import run_on
from ..layers.adapters.sites import Adapters
from .placing import PlacedAdapter, place_adapter

log = logging.getLogger(__name__)


class AdapterLoading:
    """Loads one adapter after the other. `fd` is readable while `take` has an answer.

    Adapters come into their places in `take`, between two steps, by the thread that runs the steps.
    """

    def __init__(self, adapters: Adapters | None, rank: int, cpus: Sequence[int] = ()):
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        self._adapters = adapters
        self._rank = rank
        self._cpus = cpus  # the thread's; it would inherit the one that its starter is pinned to
        self._orders: queue.SimpleQueue[LoadAdapter | None] = queue.SimpleQueue()
        self._outcomes: deque[tuple[LoadAdapter, PlacedAdapter | str | Exception]] = deque()
        self._thread: threading.Thread | None = None

    def start(self, order: LoadAdapter) -> None:
        """Forget what is in the place, and load."""
        if self._adapters is None or order.place > self._adapters.num_places:
            places = 0 if self._adapters is None else self._adapters.num_places
            self._report(order, f"place {order.place} does not exist: this server has {places} (max_loras={places})")
            return
        self._clear(order.place)
        if self._thread is None:
            self._thread = device_thread(self._load_each, "adapters")
            self._thread.start()
        self._orders.put(order)

    def take(self) -> AdapterLoaded | None:
        """The answer to the next order, if it is complete; its rows can run in the next step."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return None
        order, outcome = self._outcomes.popleft()
        answer = self._rank, order.place, order.adapter.digest
        if isinstance(outcome, Exception):
            raise outcome
        if isinstance(outcome, str):
            self._clear(order.place)  # an order before this one may have filled it
            log.warning("refused adapter=%s place=%d reason=%s", order.adapter.name, order.place, outcome)
            return AdapterLoaded(*answer, error=outcome[:MAX_LONG_TEXT])
        assert self._adapters is not None
        for site, deltas in zip(self._adapters.sites, outcome.deltas, strict=True):
            if any(delta is not None for delta in deltas):
                site.deltas.put(order.place, deltas)
            else:
                site.deltas.clear(order.place)
        return AdapterLoaded(*answer, num_bytes=outcome.num_bytes)

    def _clear(self, place: int) -> None:
        for site in () if self._adapters is None else self._adapters.sites:
            site.deltas.clear(place)

    def close(self) -> None:
        """Wait for the orders so far and end the thread."""
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join()
        os.close(self.fd)

    def _load_each(self) -> None:
        run_on(self._cpus)
        while (order := self._orders.get()) is not None:
            assert self._adapters is not None
            started = time.monotonic()
            try:
                placed = place_adapter(order.adapter, self._adapters)
                loaded = order.adapter.name, order.place, placed.num_bytes, time.monotonic() - started
                log.info("loaded adapter=%s place=%d bytes=%d load_s=%.3f", *loaded)
                self._report(order, placed)
            except ConfigError as error:
                self._report(order, str(error))
            except Exception as error:  # `take` raises it again in the loop
                self._report(order, error)

    def _report(self, order: LoadAdapter, outcome: PlacedAdapter | str | Exception) -> None:
        self._outcomes.append((order, outcome))
        os.eventfd_write(self.fd, 1)
