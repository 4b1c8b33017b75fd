"""The order among the sequences of one tenant, and lists in it."""

from bisect import bisect_left, insort

from .request import Sequence


def queue_order(priority: int, arrival: int, index: int) -> tuple[int, int, int]:
    """The sort key of a tenant's sequences: the request's priority, then its arrival, then the sequence's index."""
    return priority, arrival, index


def order_of(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.order


def insert(ordered: list[Sequence], sequence: Sequence) -> None:
    insort(ordered, sequence, key=order_of)


def remove(ordered: list[Sequence], sequence: Sequence) -> bool:
    """Remove `sequence`; False if it was not in the list."""
    index = bisect_left(ordered, sequence.order, key=order_of)
    if index == len(ordered) or ordered[index] is not sequence:
        return False
    del ordered[index]
    return True
