"""The prefix of a sequence that the prefix cache and the tiers hold together, and what of it has to be loaded."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, zip_longest

from ...requests.request import Sequence
from ..kv_group import RELEASED, KVGroups, keys_of

IN_TIER = -2  # entry of a block table: the block can be loaded

Cut = Callable[[list[list[int]], int, Callable[[int, int], int]], list[list[int]]]


@dataclass(frozen=True, slots=True)
class TierHit:
    """A prefix that is longer than the cached one."""

    keys: list[bytes]  # of the blocks to load
    numbers: list[int]  # of these blocks in the sequence
    cached: list[int]  # the other blocks that the prefix needs
    num_tokens: int  # that need not be computed once the blocks are loaded, and had to be otherwise


def find_hit(
    sequence: Sequence, groups: KVGroups, limit: int, num_cached: int, block_of: Callable[[bytes], int], cut: Cut
) -> TierHit | None:
    """A prefix of at most `limit` blocks, longer than the `num_cached` blocks of the prefix cache.

    `block_of` maps a key to a block, IN_TIER or RELEASED; `cut` is that of the prefix cache.
    """
    hashes = sequence.block_hashes[:limit]
    keys = [keys_of(index, hashes) for index in range(len(groups))]
    tables: list[list[int]] = [[] for _ in groups.math]
    num_found = len(hashes)
    for index in groups.full:
        found = list(map(block_of, keys[index][:num_found]))
        num_found = found.index(RELEASED) if RELEASED in found else len(found)
        tables[index] = found
    if num_found <= num_cached:
        return None
    for index in groups.windows:
        tables[index] = [RELEASED] * num_found
    tables = cut(tables, num_found, lambda table, index: block_of(keys[table][index]))
    num_found = len(tables[0])
    if num_found <= num_cached:
        return None
    wanted = [
        (keys[table][number], number)
        for number in range(num_found)
        for table in range(len(tables))
        if tables[table][number] == IN_TIER
    ]
    cached = [block for block in chain.from_iterable(zip_longest(*tables, fillvalue=RELEASED)) if block >= 0]
    wanted_keys, numbers = [key for key, _ in wanted], [number for _, number in wanted]
    return TierHit(wanted_keys, numbers, cached, (num_found - num_cached) * groups.block_size)
