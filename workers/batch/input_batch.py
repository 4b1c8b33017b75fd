"""What one forward pass reads, and how it is gathered from the rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_serve.protocol.messages.worker import Chunk

from .request_rows import RequestRows


@dataclass(frozen=True, slots=True, eq=False)
class InputBatch:
    """One step's tokens, packed end to end. Rows are requests: first the decode set ascending, then chunks."""

    token_ids: Tensor  # [tokens] i64
    positions: Tensor  # [tokens] i64
    row_starts: Tensor  # [rows + 1] i32, host (CUDA: device); row r owns tokens row_starts[r]:row_starts[r + 1]
    kv_lens: Tensor  # [rows] i32, as row_starts; tokens in the cache after this step's write: positions 0..kv_len-1
    longest: int  # of kv_lens, or more
    block_tables: Tensor  # [rows, max_blocks] i32; entries past a row's last block are not read
    slots: Tensor  # [tokens] i64 = block_id * block_size + offset: where each token's K and V go
    logit_tokens: Tensor  # [sampled] i64, indices into tokens
    num_decode_rows: int  # the first rows; each has exactly one token


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A batch and whose it is."""

    batch: InputBatch
    rows: NDArray[np.int64]  # [rows of the batch] row indices
    sampled_rows: NDArray[np.int64]  # [sampled] those whose last token is in the batch, in batch order


@dataclass(frozen=True, slots=True, eq=False)
class StepArrays:
    """What an InputBatch is made of, on the host; its block table is the rows' own."""

    token_ids: NDArray[np.int64]  # [tokens]; that of a decode row means nothing while the host does not know it
    positions: NDArray[np.int64]  # [tokens]
    slots: NDArray[np.int64]  # [tokens]
    row_starts: NDArray[np.int32]  # [rows + 1]
    kv_lens: NDArray[np.int32]  # [rows]
    longest: int
    rows: NDArray[np.int64]  # [rows]
    is_sampled: NDArray[np.bool_]  # [rows]
    num_decode_rows: int

    @property
    def logit_tokens(self) -> NDArray[np.int64]:
        """[sampled] indices into tokens."""
        return self.row_starts[1:][self.is_sampled].astype(np.int64) - 1


def step_arrays(state: RequestRows, decode_rows: NDArray[np.int64], chunks: Sequence[Chunk]) -> StepArrays:
    """Gather the one uncomputed token of each decode row (ascending), then the next tokens of each chunk's row.

    Costs a fixed number of array operations, whatever the number of rows.
    """
    rows = np.concatenate((decode_rows, np.array([chunk.row for chunk in chunks], np.int64)))
    counts = np.ones(len(rows), np.int64)
    counts[len(decode_rows) :] = [chunk.num_tokens for chunk in chunks]
    first = state.num_computed[rows]
    kv_lens = first + counts
    lengths = state.length[rows]
    assert (kv_lens <= lengths).all(), "a plan computes tokens that its row does not have"
    row_starts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(counts, out=row_starts[1:])
    positions = np.arange(row_starts[-1]) + np.repeat(first - row_starts[:-1], counts)
    token_rows = np.repeat(rows, counts)
    block, offset = np.divmod(positions, state.block_size)
    samples = kv_lens == lengths
    assert samples[: len(decode_rows)].all(), "a row of the decode set has more than one token to compute"
    return StepArrays(
        token_ids=state.token_ids[token_rows, positions].astype(np.int64),
        positions=positions,
        slots=state.block_table[token_rows, block].astype(np.int64) * state.block_size + offset,
        row_starts=row_starts.astype(np.int32),
        kv_lens=kv_lens.astype(np.int32),
        longest=int(kv_lens.max(initial=0)),
        rows=rows,
        is_sampled=samples,
        num_decode_rows=len(decode_rows),
    )


def build_step(
    state: RequestRows, decode_rows: NDArray[np.int64], chunks: Sequence[Chunk], device: str = "cpu"
) -> Step:
    """The step of these rows, its tensors on `device`."""
    arrays = step_arrays(state, decode_rows, chunks)
    num_blocks = -(-arrays.longest // state.block_size)
    batch = InputBatch(
        token_ids=torch.from_numpy(arrays.token_ids).to(device),
        positions=torch.from_numpy(arrays.positions).to(device),
        row_starts=torch.from_numpy(arrays.row_starts),
        kv_lens=torch.from_numpy(arrays.kv_lens),
        longest=arrays.longest,
        block_tables=torch.from_numpy(state.block_table[arrays.rows, :num_blocks]).to(device),
        slots=torch.from_numpy(arrays.slots).to(device),
        logit_tokens=torch.from_numpy(arrays.logit_tokens).to(device),
        num_decode_rows=arrays.num_decode_rows,
    )
    return Step(batch, arrays.rows, arrays.rows[arrays.is_sampled])


class DecodeInputs:
    """Steps of the decode set alone, each valid until the next.

    On the CPU those of as many rows lie at the same places, so that what ran over one can run over the other.
    """

    def __init__(self, state: RequestRows, device: str = "cpu"):
        num_rows, _ = state.block_table.shape
        self._state = state
        self._device = device
        self._token_ids = np.zeros(num_rows, np.int64)
        self._positions = np.zeros(num_rows, np.int64)
        self._slots = np.zeros(num_rows, np.int64)
        self._row_starts = np.arange(num_rows + 1, dtype=np.int32)
        self._kv_lens = np.zeros(num_rows, np.int32)
        self._block_tables = np.zeros_like(state.block_table)
        self._each = np.arange(num_rows)

    def step(self, rows: NDArray[np.int64]) -> Step:
        """Gather the one uncomputed token of each of `rows` (ascending). Costs a fixed number of array operations."""
        state, count = self._state, len(rows)
        positions, kv_lens = self._positions[:count], self._kv_lens[:count]
        positions[:] = state.num_computed[rows]
        kv_lens[:] = state.length[rows]
        assert (positions + 1 == kv_lens).all(), "a row of the decode set has not one token to compute"
        block, offset = np.divmod(positions, state.block_size)
        longest = int(kv_lens.max(initial=0))
        num_blocks = -(-longest // state.block_size)
        self._block_tables[:count, :num_blocks] = state.block_table[rows, :num_blocks]
        self._token_ids[:count] = state.token_ids[rows, positions]
        self._slots[:count] = state.block_table[rows, block].astype(np.int64) * state.block_size + offset
        batch = InputBatch(
            token_ids=self._tensor(self._token_ids[:count]),
            positions=self._tensor(positions),
            row_starts=torch.from_numpy(self._row_starts[: count + 1]),
            kv_lens=torch.from_numpy(kv_lens),
            longest=longest,
            block_tables=self._tensor(self._block_tables[:count]),
            slots=self._tensor(self._slots[:count]),
            logit_tokens=self._tensor(self._each[:count]),
            num_decode_rows=count,
        )
        return Step(batch, rows, rows)

    def _tensor(self, array: NDArray[np.integer[Any]]) -> Tensor:
        return torch.from_numpy(array).to(self._device)
