"""The input of attention and of cache writes: the paged cache and a step's requests, for each KV group."""

from dataclasses import dataclass

from torch import Tensor

from ..batch.input_batch import InputBatch
from .kv_cache import KVCache
from .state_rows import StateRows


@dataclass(frozen=True, slots=True, eq=False)
class CacheView:
    """A cache, and the places of the step's requests and tokens in it.

    Row r owns tokens row_starts[r]:row_starts[r + 1], the last of its kv_lens[r] positions. Its position p is in block
    block_tables[r, p // block_size]. Layers with a sliding window never read the entry of a block that is entirely
    before the window of the row's first token: the entry may hold anything, and the block may be another row's.
    """

    cache: KVCache
    block_tables: Tensor  # [rows, max_blocks] i32; entries past a row's last block are not read
    row_starts: Tensor  # [rows + 1] i32
    kv_lens: Tensor  # [rows] i32, this step's tokens included
    positions: Tensor  # [tokens] i64
    slots: Tensor  # [tokens] i64 = block_id * block_size + offset of a token's K and V; negative: not written
    longest: int  # an upper bound of kv_lens
    num_decode_rows: int  # the first rows; each has exactly one token
    stored_lens: Tensor | None = None  # [rows] i32, positions without drafts; None: kv_lens
    group: int = 0  # the KV group

    @property
    def state_rows(self) -> StateRows:
        """The rows of a group of states, which has no slots."""
        return StateRows(
            self.block_tables,
            self.row_starts,
            self.kv_lens,
            self.cache.block_size,
            self.stored_lens,
            None if self.stored_lens is None else self.cache.draft_inputs,
            self.group,
        )

    @classmethod
    def of(cls, batch: InputBatch, cache: KVCache, group: int = 0) -> "CacheView":
        return cls(
            cache=cache,
            block_tables=batch.block_tables[group],
            row_starts=batch.row_starts,
            kv_lens=batch.kv_lens,
            positions=batch.positions,
            slots=batch.slots[group],
            longest=batch.longest,
            num_decode_rows=batch.num_decode_rows,
            stored_lens=batch.stored_lens,
            group=group,
        )
