"""KV groups, the sets of layers with the same attention window or attention chunk, or with states, and their blocks.

Each row has one block table per group. Blocks of all groups have the same number of tokens and of bytes, so one pool
serves all groups. Blocks behind a group's window, or before its attention chunk, return to the pool while the row runs.

The layers of a state group are recurrent. Block i holds the state after the last computed token in it, and a token
reads the block of the token before it: the block math is that of a window of two tokens. No token is ever written to
a full block, so a full block keeps a state, from which other rows start, without a copy.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import gcd
from typing import Protocol

from paged_serve.protocol.block_hash import HASH_BYTES
from paged_serve.protocol.messages.loading.startup import KVGroup

RELEASED = -1  # entry of a block table: no later token sees the block, and it is released
LONGEST = 2**31 - 1  # tokens; the protocol counts no further
STATE_WINDOW = 2  # tokens: a token starts from the state that the token before it left


class BlockMath(Protocol):
    """Which blocks of a row a group needs. `position`: that of the next token that the row computes."""

    def first_needed(self, position: int) -> int:
        """The number of the first block that is still read."""
        ...

    def end(self, position: int, num_blocks: int) -> int:
        """The length of the table, released entries included, out of `num_blocks` for all known tokens."""
        ...


class FullGroup:
    """Every token attends to all tokens before it: the row keeps its blocks."""

    def first_needed(self, position: int) -> int:
        return 0

    def end(self, position: int, num_blocks: int) -> int:
        return num_blocks


@dataclass(frozen=True, slots=True)
class WindowGroup:
    """A token attends to itself and the window - 1 tokens before it.

    A row has blocks for its window and the longest chunk, so a chunk never waits for one.
    """

    window: int  # tokens
    block_size: int  # tokens
    max_chunk: int  # tokens

    def first_needed(self, position: int) -> int:
        return max(0, position - self.window + 1) // self.block_size

    def end(self, position: int, num_blocks: int) -> int:
        num_seen = self.window - 1 + self.max_chunk  # positions that a chunk attends to, not aligned to blocks
        return min(num_blocks, self.first_needed(position) + (num_seen - 2) // self.block_size + 2)


@dataclass(frozen=True, slots=True)
class AttentionChunkGroup:
    """A token sees itself and the tokens before it in its attention chunk, which begin at multiples of its size.

    A row has blocks for its attention chunk and the longest chunk, so a chunk never waits for one.
    """

    attention_chunk: int  # tokens
    block_size: int  # tokens
    max_chunk: int  # tokens

    def first_needed(self, position: int) -> int:
        return position // self.attention_chunk * self.attention_chunk // self.block_size

    def end(self, position: int, num_blocks: int) -> int:
        num_seen = self.attention_chunk - 1 + self.max_chunk  # by the tokens of a chunk
        offset = self.block_size - gcd(self.attention_chunk, self.block_size)  # of the first in its block, at most
        return min(num_blocks, self.first_needed(position) + (offset + num_seen - 1) // self.block_size + 1)


@dataclass(frozen=True, slots=True)
class KVGroups:
    """All groups of a model, in the order of the worker's ready message."""

    math: tuple[BlockMath, ...]
    block_size: int  # tokens
    full: tuple[int, ...]  # indices of the groups that keep all blocks
    windows: tuple[int, ...]  # indices of the groups that do not: those with a window, an attention chunk or a state
    by_kind: tuple[tuple[BlockMath, tuple[int, ...]], ...]  # for each such kind, the indices of its groups
    has_states: bool

    @classmethod
    def of(cls, groups: Sequence[KVGroup], block_size: int, max_chunk: int) -> "KVGroups":
        """`max_chunk`: the most tokens of a row in one step."""
        math = tuple(_math(group, block_size, max_chunk) for group in groups)
        full = tuple(index for index, group in enumerate(groups) if group.is_full)
        indices_by_kind: dict[KVGroup, list[int]] = {}
        for index, group in enumerate(groups):
            if not group.is_full:
                indices_by_kind.setdefault(group, []).append(index)
        windows = tuple(sorted(chain.from_iterable(indices_by_kind.values())))
        by_kind = tuple((math[indices[0]], tuple(indices)) for indices in indices_by_kind.values())
        return cls(math, block_size, full, windows, by_kind, any(group.is_state for group in groups))

    def __len__(self) -> int:
        return len(self.math)

    def num_blocks_for(self, num_tokens: int) -> int:
        """The most blocks that a sequence of `num_tokens` tokens holds at once when it runs alone."""
        num_blocks = -(-num_tokens // self.block_size)
        return sum(group.end(0, num_blocks) for group in self.math)

    def capacity_tokens(self, num_blocks: int) -> int:
        """The longest sequence that fits `num_blocks` blocks when it is alone."""
        longest = range(LONGEST // self.block_size)
        fitting = bisect_right(longest, num_blocks, key=lambda count: self.num_blocks_for(count * self.block_size))
        return (fitting - 1) * self.block_size

    def first_needed(self, position: int) -> list[int]:
        return [group.first_needed(position) for group in self.math]


def _math(group: KVGroup, block_size: int, max_chunk: int) -> BlockMath:
    if group.is_state:
        return WindowGroup(STATE_WINDOW, block_size, max_chunk)
    if group.window:
        return WindowGroup(group.window, block_size, max_chunk)
    if group.attention_chunk:
        return AttentionChunkGroup(group.attention_chunk, block_size, max_chunk)
    return FullGroup()


def keys_of(index: int, hashes: Sequence[bytes]) -> Sequence[bytes]:
    """The pool's keys for a group's blocks with these hashes: equal tokens have one block in each group."""
    if not index:
        return hashes
    suffix = index.to_bytes(2, "little")
    return [block_hash + suffix for block_hash in hashes]


def group_of(key: bytes) -> tuple[bytes, int]:
    """The hash and the group of a block with this pool key, see `keys_of`."""
    return key[:HASH_BYTES], int.from_bytes(key[HASH_BYTES:], "little")
