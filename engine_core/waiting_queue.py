"""Who runs next: sequences that own nothing, in the policy's order."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from .request import Sequence


def _order(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.order


class WaitingQueue:
    """Ordered by `Sequence.order`, so a preempted sequence returns to the place that its arrival gave it."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def add(self, sequence: Sequence) -> None:
        insort(self._sequences, sequence, key=_order)

    def first(self) -> Sequence:
        return self._sequences[0]

    def pop(self) -> Sequence:
        return self._sequences.pop(0)

    def remove(self, sequence: Sequence) -> bool:
        """False when it was not here."""
        index = bisect_left(self._sequences, sequence.order, key=_order)
        if index == len(self._sequences) or self._sequences[index] is not sequence:
            return False
        del self._sequences[index]
        return True

    def check(self) -> None:
        orders = [sequence.order for sequence in self._sequences]
        assert orders == sorted(set(orders)), "the queue is out of order, or holds a sequence twice"
