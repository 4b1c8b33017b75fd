"""How the inputs of a row-parallel product are cut, so that ranks that share them add as one rank does.

There are 4 segments, or fewer where a fourth of the inputs is not whole: a function of the model alone, never of the
number of ranks. A rank of one holds them all, a rank of two half of them.
"""

from dataclasses import replace

from ...checkpoint.packed_weight import PackedWeight
from ...checkpoint.weight_forms import GroupedWeight, Weight
from ...kernels.cpu.packing import OCTET, WORD_INPUTS

COUNTS = (4, 2)


def segments_of_rank(share: Weight, num_ranks: int) -> int:
    """Into how many segments this rank's `share` of the inputs falls; 1 as well where it is less than a segment."""
    inputs = share.shape[1] * num_ranks
    count = next((count for count in COUNTS if inputs % count == 0 and _is_whole(share, inputs // count)), 1)
    return count // num_ranks if count % num_ranks == 0 else 1


def in_segments(share: Weight, count: int) -> Weight:
    """`share` in groups that end where its `count` segments end: a longer one becomes several of the same scale."""
    if not isinstance(share, GroupedWeight) or share.order is not None:
        return share
    times = share.group_size * count // share.shape[1]
    if times <= 1:
        return share
    zeros = None if share.zeros is None else share.zeros.repeat_interleave(times, 1)
    return replace(share, scales=share.scales.repeat_interleave(times, 1), zeros=zeros)


def _is_whole(share: Weight, segment: int) -> bool:
    """Whether a segment of so many inputs is whole words, and whole groups or a whole part of one."""
    if not isinstance(share, GroupedWeight | PackedWeight) or not share.group_size:
        return segment % WORD_INPUTS == 0
    group = share.group_size
    return share.order is None and segment % OCTET == 0 and (segment % group == 0 or group % segment == 0)
