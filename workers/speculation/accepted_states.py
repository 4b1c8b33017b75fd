"""The states of recurrent layers in steps that verify drafts.

The forward pass stores no state after a draft, because a state cannot go back. Once it is known which drafts are
accepted, the states advance by these: the operations on states run again, with the inputs that they had in the forward
pass. A token's bits do not depend on the division into steps, so the states have the bits of plain decoding.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..batch.device_rows import DeviceRows
from ..kv.draft_inputs import DraftInputs
from ..kv.state_rows import StateRows
from .verified_step import VerifiedStep


class AcceptedStates:
    """Stores the states after accepted drafts, in all blocks that these pass."""

    def __init__(self, inputs: DraftInputs, rows: DeviceRows, block_size: int):
        self._inputs = inputs
        self._rows = rows
        self._block_size = block_size

    def begin(self, step: VerifiedStep) -> None:
        """Before the forward pass."""
        self._inputs.tokens = step.draft_tokens

    def store(self, step: VerifiedStep, num_sampled: NDArray[np.int64]) -> None:
        """After sampling: `num_sampled` [verified] tokens of each row with drafts, all but the last accepted drafts."""
        arrays, num_accepted = step.arrays, num_sampled - 1
        if arrays.stored_lens is None or not num_accepted.any():
            return
        rows = step.verified_rows[num_accepted > 0]
        first_drafts = arrays.row_starts[rows] + 1 - step.draft_tokens.start
        spans = accepted_spans(first_drafts, arrays.stored_lens[rows], num_accepted[num_accepted > 0])
        row_starts, kv_lens = (torch.from_numpy(each).to(self._rows.device) for each in spans)
        tables = self._rows.tables_of(torch.from_numpy(np.repeat(arrays.rows[rows], 2)).to(self._rows.device))
        self._inputs.again(lambda group: StateRows(tables[group], row_starts, kv_lens, self._block_size, group=group))


def accepted_spans(
    first_drafts: NDArray[np.integer[Any]], stored_lens: NDArray[np.int32], num_accepted: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """`row_starts` [2n + 1] and `kv_lens` [2n] of StateRows for the accepted drafts of n rows, ascending tokens.

    Rows have no gaps between them, so before each is a row of padding with the tokens that are not computed again.
    """
    num_rows = len(num_accepted)
    row_starts, kv_lens = np.zeros(2 * num_rows + 1, np.int32), np.zeros(2 * num_rows, np.int32)
    row_starts[1::2] = first_drafts
    row_starts[2::2] = first_drafts + num_accepted
    kv_lens[1::2] = stored_lens + num_accepted
    return row_starts, kv_lens
