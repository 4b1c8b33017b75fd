"""Softmax weights whose bits depend only on their own row, and their sums.

A vectorised `exp` or `sum` may treat the last elements of an array differently, and where the array ends depends on the
number of rows. Each row is therefore padded to whole tiles of 256. A tile is always summed in the same order (float32,
pairwise), and tile sums are accumulated from left to right in float64.
"""

import numpy as np
from numpy.typing import NDArray

TILE = 256
SLAB_ELEMENTS = 1 << 20  # logits processed at once: 4 MB, so that a slab stays in the cache between passes


class WeightBuffer:
    """Scratch memory for the weights of up to `rows` rows at a time; reused by every step."""

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size
        padded = -(-vocab_size // TILE) * TILE
        self.rows = max(1, SLAB_ELEMENTS // padded)
        self._buffer = np.empty((self.rows, padded), np.float32)

    def shifted(self, logits: NDArray[np.float32], top: NDArray[np.float32]) -> NDArray[np.float32]:
        """[m, vocab] logits and their maxima [m] -> a view [m, padded] of logit - maximum, padding at -inf."""
        view = self._buffer[: len(logits)]
        np.subtract(logits, top[:, None], out=view[:, : self.vocab_size])
        view[:, self.vocab_size :] = -np.inf
        return view


def tile_sums(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """[m, padded] weights -> [m, tiles] sums of all tiles up to and including each; the last column is the total."""
    tiles = weights.reshape(len(weights), -1, TILE)
    sums: NDArray[np.float64] = np.cumsum(np.add.reduce(tiles, axis=2).astype(np.float64), axis=1)
    return sums
