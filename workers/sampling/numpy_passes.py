"""The sampler's Passes in numpy: the reference, and the implementation without kernels."""

import numpy as np
from numpy.typing import NDArray

from ..batch.sampling_columns import SamplingColumns
from .draw import draw
from .logprobs import TokenLogprobs, token_logprobs
from .probabilities import WeightBuffer
from .truncation import apply_min_p, apply_top_k, apply_top_p, apply_xtc


class NumpyPasses:
    """Processes slabs of rows that fit the CPU's cache."""

    def __init__(self, vocab_size: int):
        self._buffer = WeightBuffer(vocab_size)

    def scan(self, logits: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        best: NDArray[np.int64] = logits.argmax(axis=1)
        return best, np.isfinite(logits[np.arange(len(logits)), best]) & np.isfinite(logits.min(axis=1))

    def mask(
        self,
        logits: NDArray[np.float32],
        indices: NDArray[np.int64],
        masks: NDArray[np.int32],
        mask_of: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        allowed = np.unpackbits(masks[mask_of].view(np.uint8), axis=1, count=logits.shape[1], bitorder="little")
        for index, bits in zip(indices.tolist(), allowed, strict=True):
            np.copyto(logits[index], -np.inf, where=bits == 0)
        best: NDArray[np.int64] = logits[indices].argmax(axis=1)
        best[np.isneginf(logits[indices, best])] = -1
        return best

    def draw(
        self,
        logits: NDArray[np.float32],
        best: NDArray[np.int64],
        indices: NDArray[np.int64],
        rows: NDArray[np.int64],
        columns: SamplingColumns,
        random: NDArray[np.float64],
        exclusions: NDArray[np.float64],
        masks: NDArray[np.int32],
        mask_of: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        tokens = np.empty(len(indices), np.int64)
        for start in range(0, len(indices), self._buffer.rows):
            slab = slice(start, start + self._buffer.rows)
            part = indices[slab]
            # A batch of plain rows is contiguous: a slice of it is a view, whereas an index array would copy.
            whole = len(part) == part[-1] - part[0] + 1
            chosen = logits[part[0] : part[-1] + 1] if whole else logits[part]
            chosen, top = self._held(chosen, best[slab], masks, mask_of[slab])
            weights = self._weights(chosen, np.maximum(top, 0), rows[slab], columns)
            apply_xtc(weights, chosen, exclusions[slab])
            tokens[slab] = np.where(top < 0, -1, draw(weights, random[slab]))
        return tokens

    def logprobs(
        self,
        logits: NDArray[np.float32],
        indices: NDArray[np.int64],
        tokens: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> TokenLogprobs:
        shape = len(indices), 1 + int(counts.max(initial=0))
        found = TokenLogprobs(np.zeros(shape, np.int32), np.zeros(shape, np.float32), np.zeros(len(indices), np.int32))
        for count in np.unique(counts).tolist():
            alike = np.flatnonzero(counts == count)
            part = token_logprobs(logits[indices[alike]], tokens[alike], count, self._buffer)
            found.token_ids[alike, : 1 + count] = part.token_ids
            found.logprobs[alike, : 1 + count] = part.logprobs
            found.ranks[alike] = part.ranks
        return found

    def _held(
        self,
        logits: NDArray[np.float32],
        best: NDArray[np.int64],
        masks: NDArray[np.int32],
        mask_of: NDArray[np.int64],
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """A copy of the logits with the masks applied, if any, and each row's best token in it, or -1."""
        held = np.flatnonzero(mask_of >= 0)
        if not len(held):
            return logits, best
        logits, best = logits.copy(), best.copy()
        best[held] = self.mask(logits, held, masks, mask_of[held])
        logits[best < 0] = 0.0  # of no consequence, but a draw needs weights
        return logits, best

    def _weights(
        self, logits: NDArray[np.float32], best: NDArray[np.int64], rows: NDArray[np.int64], columns: SamplingColumns
    ) -> NDArray[np.float32]:
        """Weights after temperature, min-p, top-k and top-p: [m, vocab] logits -> [m, padded], not normalised."""
        shifted = self._buffer.shifted(logits, logits[np.arange(len(logits)), best])
        np.divide(shifted, columns.temperature[rows][:, None], out=shifted)
        min_p = np.flatnonzero(columns.log_min_p[rows] > -np.inf)
        if len(min_p):
            kept = shifted[min_p]
            apply_min_p(kept, columns.log_min_p[rows[min_p]])
            shifted[min_p] = kept
        weights = np.exp(shifted, out=shifted)
        top_k, top_p = columns.top_k[rows], columns.top_p[rows]
        by_rank = np.flatnonzero(top_k > 0)
        if len(by_rank):
            kept = weights[by_rank]
            apply_top_k(kept, logits[by_rank], top_k[by_rank], top_p[by_rank])
            weights[by_rank] = kept
        by_mass = np.flatnonzero((top_k == 0) & (top_p < 1.0))
        if len(by_mass):
            kept = weights[by_mass]
            apply_top_p(kept, logits[by_mass], top_p[by_mass])
            weights[by_mass] = kept
        return weights
