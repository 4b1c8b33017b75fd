"""Lists of sequences by `Sequence.order`."""

from bisect import bisect_left, insort

from .request import Sequence


def order_of(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.order


def insert(ordered: list[Sequence], sequence: Sequence) -> None:
    insort(ordered, sequence, key=order_of)


def remove(ordered: list[Sequence], sequence: Sequence) -> bool:
    """False when it was not there."""
    index = bisect_left(ordered, sequence.order, key=order_of)
    if index == len(ordered) or ordered[index] is not sequence:
        return False
    del ordered[index]
    return True
