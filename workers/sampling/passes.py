"""The passes over logits that cost most; the sampler decides what is passed over, and why."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..batch.sampling_columns import SamplingColumns
from .logprobs import TokenLogprobs


class Passes(Protocol):
    """Logits are [n, vocab] float32 throughout. A row's result depends on that row alone, bit for bit."""

    def scan(self, logits: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Each row's best token, the lowest id among equals, and whether the whole row is finite."""
        ...

    def mask(
        self, logits: NDArray[np.float32], indices: NDArray[np.int64], masks: NDArray[np.int32]
    ) -> NDArray[np.int64]:
        """Make -infinity, in place, of the logits' rows at `indices`, what their `masks` [n, words] do not allow.

        Bit i % 32 of word i / 32 is token i's. Returns each row's best token, the lowest id among equals, or 0.
        """
        ...

    def draw(
        self,
        logits: NDArray[np.float32],
        best: NDArray[np.int64],
        indices: NDArray[np.int64],
        rows: NDArray[np.int64],
        columns: SamplingColumns,
        random: NDArray[np.float64],
        exclusions: NDArray[np.float64],
        masks: Sequence[NDArray[np.int32] | None],
    ) -> NDArray[np.int64]:
        """A token for each of the logits' rows at `indices`; what follows them is theirs.

        Some logit of a row is finite, the others may be -infinity. Where there is a mask, as in `mask`, the token is
        among those that it allows, and `best` means nothing; the logits stay as they are. No `masks` at all: no row has
        one.
        """
        ...

    def logprobs(
        self,
        logits: NDArray[np.float32],
        indices: NDArray[np.int64],
        tokens: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> TokenLogprobs:
        """Of the logits' rows at `indices`, which are finite: of each one's token, and of its `counts` best.

        `counts` are at most the vocabulary. A row with less than the largest count has columns that mean nothing.
        """
        ...
