"""The places of a step's requests in a group of states."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from .draft_inputs import DraftInputs


@dataclass(frozen=True, slots=True, eq=False)
class StateRows:
    """The rows of one step, and the blocks that hold their states.

    Block i of a row, number block_tables[r, i], holds the state after the row's last computed position among
    [i * block_size, (i + 1) * block_size). A token at position p starts from the state in block (p - 1) // block_size,
    at position 0 from zeros, and its state goes to block p // block_size. So a full block keeps a state, from which
    another row may start, and no state is ever copied.

    Positions from stored_lens on are drafts: no state after them is stored. `drafts` keeps the inputs of their
    operations, with which the accepted ones are computed again.
    """

    block_tables: Tensor  # [rows, max_blocks] i32; entries before the first token's source are not read
    row_starts: Tensor  # [rows + 1] i32; row r owns tokens row_starts[r]:row_starts[r + 1]
    kv_lens: Tensor  # [rows] i32, positions after the step; 0: padding, which has no state
    block_size: int  # positions
    stored_lens: Tensor | None = None  # [rows] i32, more than the positions before the step; None: kv_lens
    drafts: DraftInputs | None = None  # None: the step has no drafts
    group: int = 0  # the KV group

    def pieces(self) -> Iterator[tuple[int | None, int | None, slice]]:
        """The block to start from (None: zeros), the block to store to, and the tokens, for each block passed; then
        likewise for a row's drafts, which are not stored (None)."""
        starts, kv_lens = self.row_starts.tolist(), self.kv_lens.tolist()
        stored_lens = kv_lens if self.stored_lens is None else self.stored_lens.tolist()
        for row, (token, kv_len, stored_len) in enumerate(zip(starts[:-1], kv_lens, stored_lens, strict=True)):
            position = first = kv_len - (starts[row + 1] - token)
            blocks = self.block_tables[row].tolist()
            while kv_len and position < kv_len:
                source = blocks[(position - 1) // self.block_size] if position else None
                target, stop = None, kv_len
                if position < stored_len:
                    block = position // self.block_size
                    target, stop = blocks[block], min(stored_len, (block + 1) * self.block_size)
                yield source, target, slice(token + position - first, token + stop - first)
                position = stop
