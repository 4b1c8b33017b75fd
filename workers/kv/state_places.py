"""Places of recurrent layers' states in the blocks of the KV cache.

A block is a number of areas of equal size: an attention layer's keys are one, its values another. Each state lies
within one area, and several small ones share an area. A model without attention has one area, for all its states.
"""

from collections.abc import Sequence
from dataclasses import dataclass

STATE_ALIGNMENT = 64  # bytes: a state begins on a cache line
LARGEST_BLOCK = 512  # tokens; larger blocks would cost more of a prompt at each prefix hit than fewer groups save
STATE_BLOCK = 512  # tokens of a block without keys and values, at least: a state weighs as much as many tokens of them


@dataclass(frozen=True, slots=True)
class StatePlace:
    """Where a layer's state begins in the blocks of its group."""

    group: int  # counted from the first state group
    area: int
    offset: int  # bytes


def places_of(sizes: Sequence[int], num_areas: int, area_bytes: int) -> list[StatePlace]:
    """The places of states of `sizes` bytes, in order; each fits into an area."""
    places, group, area, offset = [], 0, 0, 0
    for size in sizes:
        if offset + size > area_bytes:
            area, offset = area + 1, 0
        if area == num_areas:
            group, area = group + 1, 0
        places.append(StatePlace(group, area, offset))
        offset += -(-size // STATE_ALIGNMENT) * STATE_ALIGNMENT
    return places


def block_size_for(sizes: Sequence[int], num_areas: int, bytes_per_token: int, multiple: int) -> int:
    """The tokens of a block: the least multiple of `multiple` with which states of `sizes` bytes take fewest groups.

    It is at most LARGEST_BLOCK, unless one state needs a larger area. `bytes_per_token`: of one area.
    """
    least = _round_up(-(-max(sizes) // bytes_per_token), multiple)
    sizes_tried = range(least, max(least, LARGEST_BLOCK) + 1, multiple)
    return min(sizes_tried, key=lambda tokens: places_of(sizes, num_areas, tokens * bytes_per_token)[-1].group)


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
