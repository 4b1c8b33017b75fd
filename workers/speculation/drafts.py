"""The drafts of one step: how many each row may have, one drafter after the other, the same drafts on all ranks."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from paged_serve.protocol.messages.worker import Chunk

from ..batch.request_rows import RequestRows
from ..distributed.tensor_parallel import TensorParallelGroup
from .drafter import Drafter, DraftRequest

NO_DRAFT = -1  # in the place of a draft that was not made


def num_drafts(drafts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of drafts in each row of `drafts` [n, most], as Drafts.make returns them."""
    counts: NDArray[np.int64] = (drafts != NO_DRAFT).sum(axis=1)
    return counts


class Drafts:
    """Makes drafts on rank 0 and sends them to the other ranks, which could not make them: only rank 0 has grammars."""

    def __init__(
        self, rows: RequestRows, group: TensorParallelGroup, drafters: Sequence[Drafter], device: str, max_len: int
    ):
        self._rows = rows
        self._group = group
        self._drafters = drafters
        self._device = device
        self._max_len = max_len

    def make(self, chunks: Sequence[Chunk]) -> NDArray[np.int64]:
        """Drafts [chunks, most], NO_DRAFT after each chunk's last; `most` is the largest of their `num_drafts`.

        The rows of `chunks` are to be verified, and their tokens known.
        """
        drafts = np.full((len(chunks), max(chunk.num_drafts for chunk in chunks)), NO_DRAFT)
        if self._group.rank == 0:
            for index, (request, chunk) in enumerate(zip(self._drafted(chunks), chunks, strict=True)):
                made = request.tokens[self._rows.length[chunk.row] :]
                drafts[index, : len(made)] = made
        if self._group.size == 1:
            return drafts
        shared: NDArray[np.int64] = self._group.broadcast(torch.from_numpy(drafts).to(self._device)).numpy(force=True)
        return shared

    def _drafted(self, chunks: Sequence[Chunk]) -> list[DraftRequest]:
        """What is left to draft for each chunk after all drafters: its `tokens` end with the drafts."""
        requests = [self._request(chunk) for chunk in chunks]
        for drafter in self._drafters:
            unfilled = [index for index, request in enumerate(requests) if request.most]
            made = drafter.draft([requests[index] for index in unfilled])
            for index, drafts in zip(unfilled, made, strict=True):
                requests[index] = requests[index].after(drafts)
        return requests

    def _request(self, chunk: Chunk) -> DraftRequest:
        rows, row = self._rows, chunk.row
        return DraftRequest(row, rows.tokens(row), self._most(chunk), int(rows.generation[row]))

    def _most(self, chunk: Chunk) -> int:
        """Drafts whose tokens fit the row's blocks and are followed by a token within the longest sequence."""
        rows, row = self._rows, chunk.row
        length = int(rows.length[row])
        room = min(rows.num_slots(row), self._max_len - 1) - length
        assert length == rows.num_computed[row] + 1, f"row {row} has more than its last token to compute, and drafts"
        assert room >= 0, f"row {row} has {length} tokens and no room for the next"
        return min(chunk.num_drafts, room)
