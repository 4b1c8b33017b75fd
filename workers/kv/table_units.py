"""Block tables in the units of each KV group.

The engine core counts blocks; -1 is an entry that no later token reads. The tensor of an attention layer's keys may
have more than one row for each block (see KVCache): a group's tables then hold the number of a block's first row, so
that kernels need no other stride.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from paged_serve.protocol.messages.worker import NewRow, SchedulerOutput


class TableUnits:
    """Multiplies the block ids of a plan by the units of their groups."""

    def __init__(self, units: Sequence[int], num_blocks: int):
        self._units = np.array(units, np.int32)  # by group
        self._num_blocks = num_blocks
        self._are_blocks = bool((self._units == 1).all())

    def of(self, plan: SchedulerOutput) -> SchedulerOutput:
        """`plan` with block tables in units; `plan` itself if all units are blocks.

        Raises ValueError if the cache lacks a block: kernels would write to memory beyond it.
        """
        if not (plan.new_rows or plan.extended_block_ids):
            return plan
        self._check(plan)
        if self._are_blocks:
            return plan
        groups = np.frombuffer(plan.extended_tables, "<i4") % len(self._units)
        extended = np.frombuffer(plan.extended_block_ids, "<i4") * self._units[groups]
        return msgspec.structs.replace(
            plan,
            new_rows=tuple(map(self._of_row, plan.new_rows)),
            extended_block_ids=extended.astype("<i4").tobytes(),
        )

    def _check(self, plan: SchedulerOutput) -> None:
        of_rows = (ids for new in plan.new_rows for ids in new.block_tables)
        ids = np.frombuffer(b"".join((plan.extended_block_ids, *of_rows)), "<u4") + np.uint32(1)  # -1 becomes 0
        if (ids > self._num_blocks).any():
            block = int(ids.max()) - 1
            raise ValueError(f"a plan has block {block}, but the KV cache has {self._num_blocks} blocks")

    def _of_row(self, new: NewRow) -> NewRow:
        tables = zip(new.block_tables, self._units, strict=True)
        scaled = ((np.frombuffer(ids, "<i4") * unit).astype("<i4").tobytes() for ids, unit in tables)
        return msgspec.structs.replace(new, block_tables=tuple(scaled))
