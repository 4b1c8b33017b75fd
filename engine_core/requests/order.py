"""The order among the sequences of one tenant, and lists in it."""

from bisect import bisect_left, insort

from .request import Sequence


def queue_order(priority: int, arrival: int, index: int) -> tuple[int, int, int]:
    """What sequences of one tenant are sorted by: the request's priority, then when it came, then its own sequences."""
    return priority, arrival, index


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
