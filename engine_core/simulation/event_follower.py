"""A follower of a simulated core's events: it loses batches, and asks for replays that may be cut."""

import random

from paged_serve.protocol.kv_events.index import KVEventIndex
from paged_serve.protocol.kv_events.messages import MEDIUM_STORAGE

from ..engine.engine import EngineCore
from ..kv.event_log import EventLog
from ..kv.kv_group import group_of


class EventFollower:
    """Outlives the cores that it follows. An AssertionError says that its index differs from the cache or the tier."""

    def __init__(self, rng: random.Random, num_kept: int):
        self.num_lost = 0
        self._rng = rng
        self._num_kept = num_kept
        self._index = KVEventIndex()
        self._first = 1

    def follow(self, engine: EngineCore) -> None:
        """Follow a core that has just started."""
        assert engine.kv_cache.events is not None
        self._first += 1 << 32
        self._log = EventLog(engine.kv_cache.events, self._first, self._num_kept)

    def advance(self, engine: EngineCore) -> None:
        """Publish what has happened, lose it or not, and compare."""
        batch = self._log.take(0.0)
        if batch is None or self._rng.random() < 0.3:
            self.num_lost += batch is not None
            return
        if not self._index.receive(*batch):
            while not self._replay():
                pass
        kv_cache = engine.kv_cache
        expected = {group_of(key) for key in kv_cache.pool.hashes()}
        assert self._index.blocks == expected, "a follower's index differs from the prefix cache"
        loadable = set() if kv_cache.tiers is None else {group_of(key) for key in kv_cache.tiers.index}
        assert self._index.in_tiers[MEDIUM_STORAGE] == loadable, "a follower's index differs from the tier"

    def _replay(self) -> bool:
        """Whether the replay was whole."""
        answers = [each for each in self._log.replay(self._index.begin_replay(), 0.0) if each is not None]
        is_cut = self._rng.random() < 0.2
        for answer in answers[: self._rng.randrange(len(answers) + 1)] if is_cut else answers:
            self._index.replayed(*answer)
        if not is_cut:
            self._index.end_replay()
        return not is_cut
