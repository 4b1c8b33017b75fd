"""Numbers batches of events of the prefix cache, and keeps the latest for replays."""

from collections import deque
from collections.abc import Iterator

import msgspec

from paged_serve.protocol.kv_events.messages import KVEvent, KVEventBatch

from .kv_events import KVEvents

EVENTS_PER_BATCH = 512  # of a snapshot
MAX_KEPT_BYTES = 64 << 20
Numbered = tuple[int, bytes]  # a sequence number, and a KVEventBatch as msgpack


class EventLog:
    """Batches with consecutive numbers from `first` on, greater than all that an earlier engine core has used."""

    def __init__(self, events: KVEvents, first: int, num_kept: int):
        self._events = events
        self._next = first
        self._num_kept = num_kept
        self._kept: deque[Numbered] = deque()
        self._kept_bytes = 0
        self._encode = msgspec.msgpack.Encoder().encode

    def take(self, now: float, *, even_without_events: bool = False) -> Numbered | None:
        """The batch of the events since the last call; None: there were none. `now`: seconds since 1970."""
        events = self._events.take()
        if not events and not even_without_events:
            return None
        batch = self._next, self._encode(KVEventBatch(now, events))
        self._next += 1
        self._kept.append(batch)
        self._kept_bytes += len(batch[1])
        while len(self._kept) > self._num_kept or self._kept_bytes > MAX_KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft()[1])
        return batch

    def replay(self, first: int, now: float) -> Iterator[Numbered | None]:
        """The batches from number `first` on, or a snapshot if not all of them are kept. `take` must have left none.

        It may be read while later batches are published. None: the next batch is no longer kept.
        """
        oldest = self._kept[0][0] if self._kept else self._next
        if oldest <= first <= self._next:
            return self._kept_from(first, self._next)
        return self._encoded(self._events.snapshot(), self._next - 1, now)

    def _kept_from(self, first: int, end: int) -> Iterator[Numbered | None]:
        for number in range(first, end):
            index = number - self._kept[0][0]
            yield self._kept[index] if index >= 0 else None

    def _encoded(self, events: list[KVEvent], number: int, now: float) -> Iterator[Numbered]:
        for start in range(0, len(events), EVENTS_PER_BATCH):
            yield number, self._encode(KVEventBatch(now, events[start : start + EVENTS_PER_BATCH]))
