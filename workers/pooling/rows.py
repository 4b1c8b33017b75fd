"""The rows of pooling requests: the state kept between chunks, and the vector at the end of the prompt.

A row's vector does not depend on how its prompt was chunked: the first or last token's hidden state is used unchanged,
and the sum of a mean is computed in the order of positions, across chunks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_serve.protocol.messages.pooling_params import Pooled, PoolingParams
from paged_serve.protocol.messages.worker import Chunk, NewRow, RowPooled

from ..batch.staging import HostCopy
from .arithmetic import Vectors, add_in_order
from .head import PoolingHead
from .spec import Kind


@dataclass(slots=True, eq=False)
class PoolingRow:
    """One row's pooling request, and its state after the chunks so far."""

    params: PoolingParams
    kind: Kind | None  # None: every token has its own vector
    num_tokens: int = 0  # summed so far
    total: NDArray[np.float32] | None = None  # the sum of a mean
    parts: list[Vectors] = field(default_factory=list)  # hidden states kept so far, unless the kind is mean
    chosen: NDArray[np.bool_] | None = None  # the tokens that have a vector; None: all

    def wanted(self, chunk: slice, *, is_first: bool, is_last: bool) -> slice:
        """The tokens of `chunk` that contribute to the vector."""
        if self.kind == "last":
            return slice(chunk.stop - is_last, chunk.stop)
        return slice(chunk.start, chunk.start + is_first) if self.kind == "cls" else chunk

    def take(self, hidden: Vectors) -> None:
        if self.kind != "mean":
            self.parts.append(hidden)
            return
        if self.total is None:
            self.total = np.zeros(hidden.shape[1], np.float32)
        add_in_order(self.total, hidden)
        self.num_tokens += len(hidden)

    def pooled(self) -> Vectors:
        if self.total is not None:
            return (self.total / np.float32(self.num_tokens))[None]
        found = np.concatenate(self.parts)
        return found if self.chosen is None else found[self.chosen]


@dataclass(frozen=True, slots=True, eq=False)
class PoolingChunk:
    """A part of a row's hidden states that is being copied to the host."""

    index: int  # of the row
    row: PoolingRow
    count: int  # tokens
    is_last: bool


class PendingPooled:
    """The vectors of a started step. `result` must be called once, in the order of steps."""

    def __init__(self, head: PoolingHead, chunks: Sequence[PoolingChunk], hidden: Tensor):
        self._head = head
        self._chunks = chunks
        self._hidden = HostCopy(hidden)

    def result(self) -> tuple[RowPooled, ...]:
        """Wait for the hidden states."""
        [hidden] = self._hidden.wait()
        answers, start = [], 0
        for chunk in self._chunks:
            chunk.row.take(hidden[start : start + chunk.count])
            start += chunk.count
            if chunk.is_last:
                answers.append(RowPooled(chunk.index, self._answer(chunk.row)))
        return tuple(answers)

    def _answer(self, row: PoolingRow) -> Pooled | None:
        with np.errstate(all="ignore"):  # non-finite results are checked for below
            pooled = row.pooled()
            if not np.isfinite(pooled).all():
                return None
            vectors = self._head(pooled, row.params)
        if not np.isfinite(vectors).all():
            return None
        rows, columns = vectors.shape
        return Pooled(rows, columns, vectors.astype("<f4").tobytes())


class PoolingRows:
    """The rows of pooling requests, by row index."""

    def __init__(self, head: PoolingHead):
        self._head = head
        self._rows: dict[int, PoolingRow] = {}

    def apply(self, new_rows: Iterable[NewRow]) -> None:
        """Register a plan's new rows; each replaces the previous request of its row."""
        for new in new_rows:
            self._rows.pop(new.row, None)
            if (params := new.pooling_params) is not None:
                of_tokens = params.task.startswith("token_") or self._head.spec.averages_scores
                kind = None if of_tokens else self._head.spec.kind
                row = self._rows[new.row] = PoolingRow(params, kind)
                if params.step_tag_id is not None:
                    row.chosen = np.frombuffer(new.token_ids, "<i4") == params.step_tag_id

    def token_types(self, chunks: Sequence[Chunk], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The types of a step's tokens at `positions`: 1 in the second text of a pair, else 0."""
        borders = [(row := self._rows.get(chunk.row)) and row.params.second_text for chunk in chunks]
        never = np.iinfo(np.int64).max
        counts = [chunk.num_tokens for chunk in chunks]
        return (positions >= np.repeat([never if b is None else b for b in borders], counts)).astype(np.int64)

    def launch(
        self,
        chunks: Sequence[Chunk],
        row_starts: NDArray[np.integer[Any]],
        first_positions: NDArray[np.integer[Any]],
        lengths: NDArray[np.integer[Any]],
        hidden: Tensor,
    ) -> PendingPooled | None:
        """Start copying the parts of a step's `hidden` [tokens, hidden] that these rows need; None if there are none.

        For each chunk: `row_starts`, where its tokens start in `hidden`; the position of the first; its row's length.
        """
        if not self._rows:
            return None
        found: list[PoolingChunk] = []
        parts: list[Tensor] = []
        for chunk, start, first, length in zip(
            chunks, row_starts.tolist(), first_positions.tolist(), lengths.tolist(), strict=True
        ):
            if (row := self._rows.get(chunk.row)) is None:
                continue
            is_last = first + chunk.num_tokens == length
            wanted = row.wanted(slice(start, start + chunk.num_tokens), is_first=first == 0, is_last=is_last)
            parts.append(hidden[wanted])
            found.append(PoolingChunk(chunk.row, row, len(parts[-1]), is_last))
            if is_last:
                del self._rows[chunk.row]
        return PendingPooled(self._head, found, torch.cat(parts).float()) if found else None
