"""The sampler's Passes on our CPU kernels, which read a row a few times; numpy needs dozens of passes."""

import numpy as np
from numpy.typing import NDArray

from ...batch.sampling_columns import SamplingColumns
from ...kernels.cpu.library import Pool
from ...kernels.cpu.sampling import draw_tokens, mask_logits, scan_logits, token_logprobs
from ...sampling.logprobs import TokenLogprobs


class CpuPasses:
    def __init__(self, pool: Pool):
        self._pool = pool

    def scan(self, logits: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        return scan_logits(self._pool, logits)

    def mask(
        self,
        logits: NDArray[np.float32],
        indices: NDArray[np.int64],
        masks: NDArray[np.int32],
        mask_of: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        return mask_logits(self._pool, logits, indices, masks, mask_of)

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
        chances = (columns.temperature, columns.log_min_p, columns.top_k, columns.top_p)
        return draw_tokens(self._pool, logits, indices, rows, *chances, random, exclusions, masks, mask_of)

    def logprobs(
        self,
        logits: NDArray[np.float32],
        indices: NDArray[np.int64],
        tokens: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> TokenLogprobs:
        return TokenLogprobs(*token_logprobs(self._pool, logits, indices, tokens, counts))
