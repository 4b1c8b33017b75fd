"""The expensive passes over logits; the sampler decides which rows need which pass."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..batch.sampling_columns import SamplingColumns
from .logprobs import TokenLogprobs

NO_TOKEN = -1  # instead of a token of a row in which none is allowed


class Passes(Protocol):
    """Logits are [n, vocab] float32 throughout. A row's result depends on that row alone, bit for bit."""

    def scan(self, logits: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Each row's best token, the lowest id among equals, and whether the whole row is finite."""
        ...

    def mask(
        self,
        logits: NDArray[np.float32],
        indices: NDArray[np.int64],
        masks: NDArray[np.int32],
        mask_of: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Set logits to -infinity, in place, where the masks do not allow them, in the rows at `indices`.

        Row `indices[i]` has the mask `masks[mask_of[i]]`, of which bit t % 32 of word t / 32 is token t's. Returns each
        row's best token, the lowest id among equals, or -1 if no token is allowed.
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
        masks: NDArray[np.int32],
        mask_of: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Draw a token for each row of the logits at `indices`; other arguments than `masks` have one entry per index.

        At least one logit of a row is finite, the others may be -infinity. Row i has the mask `masks[mask_of[i]]`, as
        in `mask`, or none if `mask_of[i]` is -1. With a mask the token is one that it allows, or -1 if it allows none,
        and `best` is ignored; the logits are not changed.
        """
        ...

    def logprobs(
        self,
        logits: NDArray[np.float32],
        indices: NDArray[np.int64],
        tokens: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> TokenLogprobs:
        """Logprobs of the finite rows of `logits` at `indices`: of each row's token, and of its `counts` best tokens.

        `counts` are at most the vocabulary size. A row's columns beyond its own count are undefined.
        """
        ...
