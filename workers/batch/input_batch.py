"""The inputs of one forward pass, and how they are gathered from the rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from paged_serve.protocol.messages.worker import Chunk

from .request_rows import RequestRows

GROUP_ROWS = 16  # the most rows of a group, for which kernels keep sums


@dataclass(frozen=True, slots=True, eq=False)
class AdapterGroups:
    """The rows of a product that have a LoRA adapter, in groups with one adapter, so that its weights are read once."""

    table: Tensor  # [1 + 4 * rows] i32, on the device: see adapter_groups
    most: int  # groups: as many or fewer

    def on_host(self) -> list[tuple[int, list[int]]]:
        """Each group's adapter and rows."""
        return groups_in(self.table.cpu().numpy())


@dataclass(frozen=True, slots=True, eq=False)
class InputBatch:
    """One step's tokens, packed end to end. Rows are requests: first the decode set ascending, then chunks."""

    token_ids: Tensor  # [tokens] i64
    positions: Tensor  # [tokens] i64
    row_starts: Tensor  # [rows + 1] i32; row r owns tokens row_starts[r]:row_starts[r + 1]
    kv_lens: Tensor  # [rows] i32; tokens in the cache after this step's write: positions 0..kv_len-1
    longest: int  # the largest of kv_lens, or more
    block_tables: Sequence[Tensor]  # for each KV group [rows, max_blocks] i32; entries past the last block are not read
    slots: Sequence[Tensor]  # for each KV group [tokens] i64: a token's block_id * block_size + offset
    logit_tokens: Tensor  # [logits] i64, indices into tokens
    num_decode_rows: int  # the first rows; each has exactly one token
    token_types: Tensor | None = None  # [tokens] i64, for encoders with token types; None: all are 0
    adapters: AdapterGroups | None = None  # of the tokens; None: no row has an adapter
    logit_adapters: AdapterGroups | None = None  # of the hidden states `logit_tokens`, likewise
    stored_lens: Tensor | None = None  # [rows] i32, kv_lens without drafts; None: there are no drafts
    returned_tokens: Tensor | None = None  # [n] i64, n > 0: whose hidden states a model returns; None: all, in order


@dataclass(frozen=True, slots=True, eq=False)
class StepArrays:
    """The arrays of an InputBatch on the host, without the block tables, which the rows hold."""

    token_ids: NDArray[np.int64]  # [tokens]; undefined for a decode row while the host does not know its last token
    positions: NDArray[np.int64]  # [tokens]
    slots: Sequence[NDArray[np.int64]]  # for each KV group [tokens]
    row_starts: NDArray[np.int32]  # [rows + 1]
    kv_lens: NDArray[np.int32]  # [rows]
    longest: int
    rows: NDArray[np.int64]  # [rows]
    sampled_rows: NDArray[np.int64]  # [sampled] rows whose last token is in the step
    logit_tokens: NDArray[np.int64]  # [logits] indices into tokens: of each sampled row its last, or several (drafts)
    num_decode_rows: int  # the first rows, whose tokens the device may know alone
    adapters: NDArray[np.int32] | None = None  # [tokens] the place of each token's adapter; None: 0 everywhere
    stored_lens: NDArray[np.int32] | None = None  # [rows], kv_lens without drafts; None: there are no drafts


def step_arrays(state: RequestRows, decode_rows: NDArray[np.int64], chunks: Sequence[Chunk]) -> StepArrays:
    """Gather the one uncomputed token of each decode row (ascending), then the next tokens of each chunk's row.

    The number of array operations does not depend on the number of rows.
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
    samples = (kv_lens == lengths) & ~state.pools[rows]
    assert samples[: len(decode_rows)].all(), "a row of the decode set has more than one token to compute"
    return StepArrays(
        token_ids=state.token_ids[token_rows, positions].astype(np.int64),
        positions=positions,
        slots=_slots(state, token_rows, positions),
        row_starts=row_starts.astype(np.int32),
        kv_lens=kv_lens.astype(np.int32),
        longest=int(kv_lens.max(initial=0)),
        rows=rows,
        sampled_rows=rows[samples],
        logit_tokens=row_starts[1:][samples] - 1,
        num_decode_rows=len(decode_rows),
        adapters=_adapters(state, token_rows),
    )


def _decode_arrays(state: RequestRows, rows: NDArray[np.int64]) -> StepArrays:
    """The arrays of a step of the decode set alone, which most steps are: cheaper, since every row has one token."""
    count = len(rows)
    positions, kv_lens = state.num_computed[rows], state.length[rows]
    assert (positions + 1 == kv_lens).all(), "a row of the decode set does not have exactly one token to compute"
    return StepArrays(
        token_ids=np.zeros(count, np.int64),
        positions=positions,
        slots=_slots(state, rows, positions),
        row_starts=np.arange(count + 1, dtype=np.int32),
        kv_lens=kv_lens.astype(np.int32),
        longest=int(kv_lens.max(initial=0)),
        rows=rows,
        sampled_rows=rows,
        logit_tokens=np.arange(count),
        num_decode_rows=count,
        adapters=_adapters(state, rows),
    )


def _slots(state: RequestRows, rows: NDArray[np.int64], positions: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The slots in each KV group of the tokens at `positions` of `rows`, both [tokens]."""
    block, offset = np.divmod(positions, state.block_size)
    return [table[rows, block].astype(np.int64) * state.block_size + offset for table in state.block_tables]


def _adapters(state: RequestRows, token_rows: NDArray[np.int64]) -> NDArray[np.int32] | None:
    """The place of each token's adapter; None if there are none."""
    if not state.has_adapters:
        return None
    adapters = state.adapters[token_rows]
    return adapters if adapters.any() else None


def adapter_groups(adapters: NDArray[np.int32] | None, num_rows: int) -> tuple[NDArray[np.int32], int]:
    """The groups of rows whose adapters are at the places `adapters` [num_rows], and their number.

    In one array [1 + 4 * num_rows]: their number; the place, the first row and the number of rows of each; from
    1 + 3 * num_rows on, the rows, ordered by place. Rows without an adapter are in none.
    """
    table = np.zeros(1 + 4 * num_rows, np.int32)
    if adapters is None or not num_rows:
        return table, 0
    order = np.argsort(adapters, kind="stable")
    order = order[np.searchsorted(adapters[order], 1) :]
    if not len(order):
        return table, 0
    places = adapters[order]
    starts = np.flatnonzero(np.diff(places, prepend=0))
    counts = np.diff(starts, append=len(places))
    parts = -(-counts // GROUP_ROWS)
    first = np.repeat(starts, parts) + GROUP_ROWS * (
        np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    )
    ends = np.minimum(first + GROUP_ROWS, np.repeat(starts + counts, parts))
    table[0] = count = len(first)
    table[1 : 1 + 3 * count] = np.stack((places[first], first, ends - first), 1).ravel()
    table[1 + 3 * num_rows : 1 + 3 * num_rows + len(order)] = order
    return table, count


def groups_in(table: NDArray[np.int32]) -> list[tuple[int, list[int]]]:
    """Each group of a table of adapter_groups: the place and the rows."""
    rows = table[1 + 3 * (len(table) // 4) :].tolist()
    groups = table[1 : 1 + 3 * int(table[0])].reshape(-1, 3).tolist()
    return [(place, rows[first : first + count]) for place, first, count in groups]
