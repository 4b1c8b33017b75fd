"""Places of recurrent layers' states in the blocks of the KV cache.

In a model with states a block is one piece of memory: areas of equal size, the keys of an attention layer being one
area and its values another. A state lies anywhere in a block, over as many areas as it needs, and is never divided
among blocks: kernels read it as one array. So one state must fit into a block, and small ones share it.
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
    offset: int  # bytes


def places_of(sizes: Sequence[int], block_bytes: int) -> list[StatePlace]:
    """The places of states of `sizes` bytes, in order; each fits into a block."""
    places, group, offset = [], 0, 0
    for size in sizes:
        if offset + size > block_bytes:
            group, offset = group + 1, 0
        places.append(StatePlace(group, offset))
        offset += -(-size // STATE_ALIGNMENT) * STATE_ALIGNMENT
    return places


def block_size_for(sizes: Sequence[int], bytes_per_token: int, multiple: int) -> int:
    """The tokens of a block: the least multiple of `multiple` with which states of `sizes` bytes take fewest groups.

    It is at most LARGEST_BLOCK, unless one state needs a larger block. `bytes_per_token`: of a block's areas.
    """
    least = _round_up(-(-max(sizes) // bytes_per_token), multiple)
    sizes_tried = range(least, max(least, LARGEST_BLOCK) + 1, multiple)
    return min(sizes_tried, key=lambda tokens: places_of(sizes, tokens * bytes_per_token)[-1].group)


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
