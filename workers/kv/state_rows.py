"""The places of a step's requests in a group of states."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class StateRows:
    """The rows of one step, and the blocks that hold their states.

    Block i of a row, number block_tables[r, i], holds the state after the row's last computed position among
    [i * block_size, (i + 1) * block_size). A token at position p starts from the state in block (p - 1) // block_size,
    at position 0 from zeros, and its state goes to block p // block_size. So a full block keeps a state, from which
    another row may start, and no state is ever copied.
    """

    block_tables: Tensor  # [rows, max_blocks] i32; entries before the first token's source are not read
    row_starts: Tensor  # [rows + 1] i32; row r owns tokens row_starts[r]:row_starts[r + 1]
    kv_lens: Tensor  # [rows] i32, positions after the step; 0: padding, which has no state
    block_size: int  # positions

    def pieces(self) -> Iterator[tuple[int | None, int, slice]]:
        """The block to start from (None: zeros), the block to store to, and the tokens, for each block passed."""
        starts, kv_lens = self.row_starts.tolist(), self.kv_lens.tolist()
        for row, (token, end, kv_len) in enumerate(zip(starts, starts[1:], kv_lens, strict=False)):
            first = kv_len - (end - token)
            if kv_len == 0:
                continue
            blocks = self.block_tables[row].tolist()
            for block in range(first // self.block_size, (kv_len - 1) // self.block_size + 1):
                begin, stop = max(first, block * self.block_size), min(kv_len, (block + 1) * self.block_size)
                source = blocks[(begin - 1) // self.block_size] if begin else None
                yield source, blocks[block], slice(token + begin - first, token + stop - first)
