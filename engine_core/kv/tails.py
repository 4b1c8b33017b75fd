"""Prefixes that end within a block: the beginning of a tail, another sequence's partial block, is copied.

A tail is found by the hash of the full blocks before it and its own tokens, and serves sequences that continue all of
it. A block keeps the keys and values of every token, so later tokens in it do no harm; a block of states keeps only
the last one. In a model with states, a tail therefore ends exactly with the last token that its steps compute.
"""

import hashlib
from collections import abc
from dataclasses import dataclass

from ..requests.request import Sequence
from .block_pool import BlockPool
from .kv_group import RELEASED, KVGroups, keys_of

BlockTables = list[list[int]]


@dataclass(frozen=True, slots=True)
class Prefix:
    """Tokens that a sequence need not compute: the beginnings of its tables, and the blocks to copy after them."""

    tables: BlockTables  # by group
    num_tokens: int
    tail: abc.Sequence[int] = ()  # by group: a block that begins with the tokens after `tables`; empty: there are none


class Tails:
    """Finds and publishes the partial last blocks of sequences in `pool`."""

    def __init__(self, pool: BlockPool, groups: KVGroups):
        self._pool = pool
        self._groups = groups
        self._block_size = groups.block_size  # tokens

    def publish(self, sequence: Sequence) -> None:
        """Make the last block of `sequence` findable, which is about to release it. Its full blocks are hashed."""
        num_blocks, length = divmod(self._end(sequence), self._block_size)
        is_whole = all(
            released <= num_blocks < len(table)
            for table, released in zip(sequence.block_tables, sequence.num_released, strict=True)
        )
        if not length or not is_whole or len(sequence.block_hashes) < num_blocks:
            return
        parent = _parent(sequence, sequence.block_hashes, num_blocks)
        before, sequence.tail_hash = sequence.tail_hash, self._hash(sequence, parent, num_blocks, length)
        if before and before != sequence.tail_hash:  # `invalidate` knows one tail of each sequence
            self._pool.drop(self._pool.block_of(key) for key in self._keys(before))
        keys, blocks = self._keys(sequence.tail_hash), [table[num_blocks] for table in sequence.block_tables]
        published = self._pool.publish(blocks, keys)
        self._pool.tails.add([keys[index] for index in published], parent, length)

    def _end(self, sequence: Sequence) -> int:
        """The tokens of `sequence` that its blocks hold, with states exactly; 0: it is not known which."""
        applied, planned = sequence.num_kv_applied, sequence.num_planned
        if not self._groups.has_states:
            return applied
        is_known = planned <= sequence.num_tokens and sequence.speculating is None
        return planned if is_known and planned // self._block_size == applied // self._block_size else 0

    def find(self, sequence: Sequence, hashes: list[bytes], least: int) -> Prefix | None:
        """The longest prefix that ends in a tail after at least `least` blocks, or None.

        `hashes`: of the blocks that all full groups have. At least the last token remains to be computed.
        """
        for num_blocks in range(len(hashes), least - 1, -1):
            parent = _parent(sequence, hashes, num_blocks)
            for length in self._pool.tails.lengths(parent):
                end = num_blocks * self._block_size + length
                if end >= sequence.num_tokens:
                    continue
                tail = [*map(self._pool.block_of, self._keys(self._hash(sequence, parent, num_blocks, length)))]
                tables = self._tables(hashes, num_blocks, end)
                if RELEASED not in tail and tables is not None:
                    return Prefix(tables, end, tail)
        return None

    def _tables(self, hashes: list[bytes], num_blocks: int, end: int) -> BlockTables | None:
        """The first `num_blocks` blocks of each table for a sequence that continues at `end`; None: one is missing."""
        tables = []
        for index, first in enumerate(self._groups.first_needed(end)):
            found = [*map(self._pool.block_of, keys_of(index, hashes[first:num_blocks]))]
            if RELEASED in found:
                return None
            tables.append([RELEASED] * first + found)
        return tables

    def of_sibling(self, sibling: Sequence, end: int) -> Prefix | None:
        """The first `end` tokens of `sibling`, which runs; None if they end with a block, or one of them is missing."""
        num_blocks, length = divmod(end, self._block_size)
        first_needed = self._groups.first_needed(end)
        tables = sibling.block_tables
        is_whole = all(
            released <= first and num_blocks < len(table) and self._pool.num_valid(table[: num_blocks + 1]) > num_blocks
            for table, released, first in zip(tables, sibling.num_released, first_needed, strict=True)
        )
        if not length or not is_whole:
            return None
        shared = [
            [RELEASED] * first + table[first:num_blocks] for table, first in zip(tables, first_needed, strict=True)
        ]
        return Prefix(shared, end, [table[num_blocks] for table in tables])

    def invalidate(self, sequence: Sequence) -> None:
        """Remove the tail that `sequence` has published: it may hold NaN."""
        if sequence.tail_hash:
            self._pool.invalidate_hashes(self._keys(sequence.tail_hash))

    def _hash(self, sequence: Sequence, parent: bytes, num_blocks: int, length: int) -> bytes:
        start = num_blocks * self._block_size
        return hashlib.sha256(parent + sequence.token_bytes(start, start + length)).digest()

    def _keys(self, tail_hash: bytes) -> list[bytes]:
        return [keys_of(index, [tail_hash])[0] for index in range(len(self._groups))]


def _parent(sequence: Sequence, hashes: list[bytes], num_blocks: int) -> bytes:
    return hashes[num_blocks - 1] if num_blocks else sequence.request.chain_root
