"""What one forward pass reads, and how it is gathered from the rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from paged_serve.protocol.messages.worker import Chunk

from .request_rows import RequestRows


@dataclass(frozen=True, slots=True, eq=False)
class InputBatch:
    """One step's tokens, packed end to end. Rows are requests: first the decode set ascending, then chunks."""

    token_ids: Tensor  # [tokens] i64
    positions: Tensor  # [tokens] i64
    row_starts: Tensor  # [rows + 1] i32; row r owns tokens row_starts[r]:row_starts[r + 1]
    kv_lens: Tensor  # [rows] i32; tokens in the cache after this step's write: positions 0..kv_len-1
    longest: int  # of kv_lens, or more
    block_tables: Tensor  # [rows, max_blocks] i32; entries past a row's last block are not read
    slots: Tensor  # [tokens] i64 = block_id * block_size + offset: where each token's K and V go
    logit_tokens: Tensor  # [sampled] i64, indices into tokens
    num_decode_rows: int  # the first rows; each has exactly one token
    token_types: Tensor | None = None  # [tokens] i64, of encoders with types; None: all are 0


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
    sampled_rows: NDArray[np.int64]  # [sampled] those whose last token is in the step
    logit_tokens: NDArray[np.int64]  # [sampled] indices into tokens
    num_decode_rows: int


def step_arrays(state: RequestRows, decode_rows: NDArray[np.int64], chunks: Sequence[Chunk]) -> StepArrays:
    """Gather the one uncomputed token of each decode row (ascending), then the next tokens of each chunk's row.

    Costs a fixed number of array operations, whatever the number of rows.
    """
    if not chunks:
        return _decode_arrays(state, decode_rows)
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
    samples = (kv_lens == lengths) & ~state.pools[rows]
    assert samples[: len(decode_rows)].all(), "a row of the decode set has more than one token to compute"
    return StepArrays(
        token_ids=state.token_ids[token_rows, positions].astype(np.int64),
        positions=positions,
        slots=state.block_table[token_rows, block].astype(np.int64) * state.block_size + offset,
        row_starts=row_starts.astype(np.int32),
        kv_lens=kv_lens.astype(np.int32),
        longest=int(kv_lens.max(initial=0)),
        rows=rows,
        sampled_rows=rows[samples],
        logit_tokens=row_starts[1:][samples] - 1,
        num_decode_rows=len(decode_rows),
    )


def _decode_arrays(state: RequestRows, rows: NDArray[np.int64]) -> StepArrays:
    """Of the decode set alone, which most steps are: without what serves rows of several tokens."""
    count = len(rows)
    positions, kv_lens = state.num_computed[rows], state.length[rows]
    assert (positions + 1 == kv_lens).all(), "a row of the decode set has not one token to compute"
    block, offset = np.divmod(positions, state.block_size)
    return StepArrays(
        token_ids=np.zeros(count, np.int64),
        positions=positions,
        slots=state.block_table[rows, block].astype(np.int64) * state.block_size + offset,
        row_starts=np.arange(count + 1, dtype=np.int32),
        kv_lens=kv_lens.astype(np.int32),
        longest=int(kv_lens.max(initial=0)),
        rows=rows,
        sampled_rows=rows,
        logit_tokens=np.arange(count),
        num_decode_rows=count,
    )
