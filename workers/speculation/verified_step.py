"""The inputs of a step that verifies drafts: for its forward pass, drafts are tokens of their rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paged_serve.protocol.messages.worker import Chunk

from ..batch.input_batch import StepArrays, step_arrays
from ..batch.request_rows import RequestRows
from .drafts import NO_DRAFT, num_drafts


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedStep:
    """One step's arrays and drafts.

    `arrays.logit_tokens` has a token for each position that may be sampled: those of a row are consecutive. If the
    arrays have no decode rows, the host knows all tokens.
    """

    arrays: StepArrays
    drafts: NDArray[np.int64]  # [sampled, most + 1]: each row's drafts, then NO_DRAFT
    first_logits: NDArray[np.int64]  # [sampled] the place of each row's first position in `arrays.logit_tokens`
    verified: NDArray[np.int64]  # indices in `arrays.sampled_rows` of the rows of chunks with `num_drafts`
    verified_rows: NDArray[np.int64]  # likewise in `arrays.rows`

    @property
    def is_decode_step(self) -> bool:
        """Every row has one token, and samples."""
        return self.arrays.num_decode_rows == len(self.arrays.rows)

    @property
    def samples_all(self) -> bool:
        """Every token is a position to be sampled."""
        return len(self.arrays.logit_tokens) == len(self.arrays.token_ids)

    @property
    def draft_tokens(self) -> slice:
        """Tokens of the step, all drafts among them; all tokens if the step may be recorded."""
        if self.samples_all:
            return slice(0, len(self.arrays.token_ids))
        starts = self.arrays.row_starts
        return slice(int(starts[self.verified_rows[0]]), int(starts[self.verified_rows[-1] + 1]))


def verified_step(
    state: RequestRows, decode_rows: NDArray[np.int64], chunks: Sequence[Chunk], drafts: NDArray[np.int64]
) -> VerifiedStep:
    """The step of a plan with `drafts` [chunks with num_drafts, most], made by Drafts. All tokens are known.

    Drafts are written behind the tokens of their rows, whose lengths do not include them.
    """
    counts = num_drafts(drafts)
    verifying = np.array([chunk.row for chunk in chunks if chunk.num_drafts], np.int64)
    for row, tokens, count in zip(verifying.tolist(), drafts, counts.tolist(), strict=True):
        length = state.length[row]
        state.token_ids[row, length : length + count] = tokens[:count]
    arrays = _arrays(state, decode_rows, chunks, verifying, counts)
    places = [place for place, chunk in enumerate(chunks, start=len(decode_rows)) if chunk.num_drafts]
    rows = arrays.sampled_rows
    place_of = {row: place for place, row in enumerate(rows.tolist())}
    verified = np.array([place_of[row] for row in verifying.tolist()], np.int64)
    of_rows = np.full((len(rows), drafts.shape[1] + 1), NO_DRAFT)
    of_rows[verified, :-1] = drafts
    positions = np.ones(len(rows), np.int64)
    positions[verified] += counts
    first_logits = np.cumsum(positions) - positions
    if positions.sum() > len(rows):
        stored_lens = arrays.kv_lens.copy()
        stored_lens[places] -= counts
        arrays = replace(arrays, stored_lens=stored_lens)
        ends = np.repeat(arrays.logit_tokens - positions + 1 - first_logits, positions)
        arrays = replace(arrays, logit_tokens=ends + np.arange(len(ends)))
    step = VerifiedStep(arrays, of_rows, first_logits, verified, np.array(places, np.int64))
    if step.samples_all and not step.is_decode_step:
        step = replace(step, arrays=replace(arrays, num_decode_rows=0))
    return step


def _arrays(
    state: RequestRows,
    decode_rows: NDArray[np.int64],
    chunks: Sequence[Chunk],
    verifying: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> StepArrays:
    """The arrays of all rows, with the last position of each as its only logit token."""
    if len(verifying) == len(chunks) and not counts.any():  # as a decode step, which is cheaper
        return step_arrays(state, np.concatenate((decode_rows, verifying)), ())
    drafted = dict(zip(verifying.tolist(), counts.tolist(), strict=True))
    whole = [Chunk(chunk.row, chunk.num_tokens + drafted.get(chunk.row, 0)) for chunk in chunks]
    state.length[verifying] += counts
    arrays = step_arrays(state, decode_rows, whole)
    state.length[verifying] -= counts
    return arrays
