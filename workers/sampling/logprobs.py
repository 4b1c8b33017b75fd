"""Log-probabilities of raw logits: of a given token, with its rank, and of the k best tokens by `ordering`."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .ordering import best, rank_of, token_of
from .probabilities import WeightBuffer, tile_sums


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of n rows: column 0 is the row's own token; the k best tokens follow."""

    token_ids: NDArray[np.int32]  # [n, k + 1]
    logprobs: NDArray[np.float32]  # [n, k + 1]
    ranks: NDArray[np.int32]  # [n], of column 0; 1 is the most likely


def token_logprobs(
    logits: NDArray[np.float32], tokens: NDArray[np.int64], count: int, buffer: WeightBuffer
) -> TokenLogprobs:
    """Log-probabilities of one given token and of the `count` best in each row of finite logits [n, vocab]."""
    slabs = [slice(start, start + buffer.rows) for start in range(0, len(logits), buffer.rows)]
    parts = [_slab(logits[slab], tokens[slab], count, buffer) for slab in slabs]
    return TokenLogprobs(
        token_ids=np.concatenate([part.token_ids for part in parts]),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        ranks=np.concatenate([part.ranks for part in parts]),
    )


def _slab(logits: NDArray[np.float32], tokens: NDArray[np.int64], count: int, buffer: WeightBuffer) -> TokenLogprobs:
    own = tokens[:, None]
    chosen = np.concatenate((own, token_of(best(logits, count))), axis=1) if count else own
    values = np.take_along_axis(logits, chosen, axis=1).astype(np.float64)
    return TokenLogprobs(
        token_ids=chosen.astype(np.int32),
        logprobs=(values - _log_normalisers(logits, buffer)[:, None]).astype(np.float32),
        ranks=np.array([rank_of(row, int(token)) for row, token in zip(logits, tokens, strict=True)], np.int32),
    )


def _log_normalisers(logits: NDArray[np.float32], buffer: WeightBuffer) -> NDArray[np.float64]:
    """log(sum(exp(row))) of each row [m]."""
    top = logits.max(axis=1)
    weights = buffer.shifted(logits, top)
    np.exp(weights, out=weights)
    totals = tile_sums(weights)[:, -1].tolist()
    return np.array([best + math.log(total) for best, total in zip(top.tolist(), totals, strict=True)])
