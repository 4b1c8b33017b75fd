"""Divides the inputs of row-parallel products into segments, so that any number of ranks adds in the same order.

There are 4 segments, or fewer if the inputs cannot be divided by four. Their number depends only on the model, never on
the number of ranks. A single rank holds all of them, each of two ranks holds half.
"""

from dataclasses import replace

from ....checkpoint.blocks.block_weight import GROUP_INPUTS, BlockWeight
from ....checkpoint.packed_weight import BLOCK_FORMATS, PackedWeight
from ....checkpoint.weight_forms import GroupedWeight, StoredWeight, Weight
from ....kernels.cpu.packing import OCTET, WORD_INPUTS

COUNTS = (4, 2)


def segments_of_rank(share: Weight, num_ranks: int) -> int:
    """The number of segments in this rank's `share` of the inputs; 1 if the share is not of whole segments."""
    count = _segments_of_all(share, num_ranks)
    return count // num_ranks if count % num_ranks == 0 else 1


def has_whole_segments(share: Weight, num_ranks: int) -> bool:
    """Whether each rank has whole segments in the form of one rank's, so that all of them add as one rank does."""
    return not is_cut(share) and _segments_of_all(share, num_ranks) % num_ranks == 0


def is_cut(share: Weight) -> bool:
    """Whether `share` was dequantized because it cuts a group, so that one rank holds the matrix in another form."""
    return isinstance(share, PackedWeight | StoredWeight) and share.is_cut


def in_segments(share: Weight, count: int) -> Weight:
    """Split groups of `share` that cross a border of its `count` segments; the parts have equal scales."""
    if not isinstance(share, GroupedWeight) or share.order is not None:
        return share
    times = share.group_size * count // share.shape[1]
    if times <= 1:
        return share
    zeros = None if share.zeros is None else share.zeros.repeat_interleave(times, 1)
    return replace(share, scales=share.scales.repeat_interleave(times, 1), zeros=zeros)


def _segments_of_all(share: Weight, num_ranks: int) -> int:
    inputs = share.shape[1] * num_ranks
    return next((count for count in COUNTS if inputs % count == 0 and _is_whole(share, inputs // count)), 1)


def _is_whole(share: Weight, segment: int) -> bool:
    """Whether segments of this many inputs consist of whole words, and of whole groups or an even part of a group."""
    if isinstance(share, BlockWeight) or (isinstance(share, PackedWeight) and share.format in BLOCK_FORMATS):
        return segment % GROUP_INPUTS == 0
    if not isinstance(share, GroupedWeight | PackedWeight) or not share.group_size:
        return segment % WORD_INPUTS == 0
    group = share.group_size
    return share.order is None and segment % OCTET == 0 and (segment % group == 0 or group % segment == 0)
