"""Segments of a row-parallel product's inputs: any number of ranks adds in the same order as one rank.

There are 4 segments, or fewer if a quarter of the inputs is not whole. Their number depends on the model alone, never
on the number of ranks. A single rank holds them all, each of two ranks half of them.
"""

from dataclasses import replace

from ...checkpoint.packed_weight import PackedWeight
from ...checkpoint.weight_forms import GroupedWeight, Weight
from ...kernels.cpu.packing import OCTET, WORD_INPUTS

COUNTS = (4, 2)


def segments_of_rank(share: Weight, num_ranks: int) -> int:
    """The number of segments in this rank's `share` of the inputs; 1 also if the share is less than a segment."""
    inputs = share.shape[1] * num_ranks
    count = next((count for count in COUNTS if inputs % count == 0 and _is_whole(share, inputs // count)), 1)
    return count // num_ranks if count % num_ranks == 0 else 1


def in_segments(share: Weight, count: int) -> Weight:
    """`share` regrouped so that no group crosses its `count` segments: longer groups are split, with equal scales."""
    if not isinstance(share, GroupedWeight) or share.order is not None:
        return share
    times = share.group_size * count // share.shape[1]
    if times <= 1:
        return share
    zeros = None if share.zeros is None else share.zeros.repeat_interleave(times, 1)
    return replace(share, scales=share.scales.repeat_interleave(times, 1), zeros=zeros)


def _is_whole(share: Weight, segment: int) -> bool:
    """Whether a segment of so many inputs has whole words, and whole groups or an even part of one."""
    if not isinstance(share, GroupedWeight | PackedWeight) or not share.group_size:
        return segment % WORD_INPUTS == 0
    group = share.group_size
    return share.order is None and segment % OCTET == 0 and (segment % group == 0 or group % segment == 0)
