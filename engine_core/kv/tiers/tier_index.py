"""What the workers' tiers hold."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ..kv_events import KVEvents


class TierIndex:
    """Which blocks can be loaded: those that the tiers of all ranks hold."""

    def __init__(self, num_ranks: int, events: KVEvents | None, medium: str):
        """`events`: told which blocks can be loaded, and that they are in this `medium`; None: nothing follows."""
        self.num_ranks = num_ranks
        self.medium = medium
        self._all = (1 << num_ranks) - 1
        self._unknown = self._all  # ranks that have not said what they have
        self._ranks: dict[bytes, int] = {}  # key -> a bit for each rank
        self.num_held = 0  # shares of blocks that ranks have
        self._events = events
        # Keys whose stored blocks may hold values that are not finite, until all ranks have removed them -> how often.
        self.dropped: Counter[bytes] = Counter()

    def __contains__(self, key: bytes) -> bool:
        return key in self._ranks and self._ranks[key] == self._all

    def __iter__(self) -> Iterator[bytes]:
        return (key for key, ranks in self._ranks.items() if ranks == self._all)

    @property
    def is_known(self) -> bool:
        """Whether all ranks have said what they have."""
        return not self._unknown

    def change(self, rank: int, added: Iterable[bytes], removed: Iterable[bytes]) -> None:
        bit, ranks = 1 << rank, self._ranks
        self._unknown &= ~bit
        stored = []
        for key in added:
            before = ranks.get(key, 0)
            if key not in self.dropped and not before & bit:
                ranks[key] = before | bit
                stored.append(key)
        self.num_held += len(stored)
        if self._events is not None and (stored := [key for key in stored if key in self]):
            self._events.stored_in_tier(stored, self.medium)
        self._remove(removed, bit)

    def _remove(self, keys: Iterable[bytes], bits: int) -> None:
        """The ranks of these bits have lost the blocks."""
        lost = []
        for key in keys:
            before = self._ranks.pop(key, 0)
            self.num_held -= (before & bits).bit_count()
            if after := before & ~bits:
                self._ranks[key] = after
            if before == self._all:
                lost.append(key)
        if self._events is not None and lost:
            self._events.removed_from_tier(lost, self.medium)

    def drop(self, keys: Sequence[bytes]) -> None:
        self.dropped.update(keys)
        self._remove(keys, self._all)

    def end_drop(self, keys: Sequence[bytes]) -> None:
        """All ranks have removed these blocks; what is stored from now on is new."""
        self.dropped.subtract(keys)
        for key in keys:
            if self.dropped[key] <= 0:
                del self.dropped[key]

    def __bool__(self) -> bool:
        return bool(self._ranks)

    def check(self) -> None:
        assert self.num_held == sum(map(int.bit_count, self._ranks.values())), "the blocks of the tiers are miscounted"
        if self._events is not None:
            self._events.check_tier(set(self), self.medium)
