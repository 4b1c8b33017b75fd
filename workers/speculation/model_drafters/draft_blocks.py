"""The blocks of a drafter's own KV cache, which its rows take from one another if there are too few."""

from dataclasses import dataclass, field
from typing import Generic, TypeVar


@dataclass(slots=True, eq=False, kw_only=True)
class BlockRow:
    """A row with blocks."""

    blocks: list[int] = field(default_factory=list)
    last_used: int = 0  # number of the call


Row = TypeVar("Row", bound=BlockRow)


class DraftBlocks(Generic[Row]):
    """`num_blocks` blocks of `block_size` tokens. Call `begin` before each call of the drafter."""

    def __init__(self, num_blocks: int, block_size: int):
        self.rows: dict[int, Row] = {}
        self.free = list(range(num_blocks))
        self.block_size = block_size
        self._call = 0

    def begin(self) -> None:
        """Rows that are not extended from now on may lose their blocks."""
        self._call += 1

    def extend(self, row: Row, num_tokens: int) -> bool:
        """Give `row`, one of `rows`, blocks for `num_tokens` tokens in all. False, and no change, if there are too few.

        Rows that are not in this call are removed for it, the longest unused first.
        """
        row.last_used = self._call
        wanted = -(-num_tokens // self.block_size) - len(row.blocks)
        if wanted > len(self.free):
            self._remove_unused(wanted)
        if wanted > len(self.free):
            return False
        row.blocks += [self.free.pop() for _ in range(wanted)]
        return True

    def release(self, row: Row) -> None:
        self.free += row.blocks
        row.blocks = []

    def _remove_unused(self, wanted: int) -> None:
        unused = [number for number, row in self.rows.items() if row.last_used < self._call]
        for number in sorted(unused, key=lambda each: self.rows[each].last_used):
            if len(self.free) >= wanted:
                return
            self.free += self.rows.pop(number).blocks
