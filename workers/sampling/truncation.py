"""min-p, top-k, top-p and XTC remove tokens from the draw. All work on weights exp((logit - max) / temperature).

min-p keeps the tokens at least `min_p` times as likely as the most likely one. top-k keeps the first k tokens of
the rank order: by logit, equal logits by lower id. top-p then keeps the shortest prefix of that order whose mass
reaches `top_p` of the mass left by min-p and top-k; the token that reaches it is kept, so at least one token remains.
Of equal logits at the border, the lower ids are kept.

In the steps in which XTC applies, it drops all tokens that are at least as likely as its threshold, except the last of
them in rank order (p-e-w, https://github.com/oobabooga/text-generation-webui/pull/6335).
"""

import numpy as np
from numpy.typing import NDArray

from .probabilities import tile_sums

TOP_P_FIRST_LOOK = 256  # tokens among which top-p usually ends; other rows are sorted completely


def apply_min_p(shifted: NDArray[np.float32], log_min_p: NDArray[np.float32]) -> None:
    """Drop, in place, tokens less than min_p times as likely as the best: [m, padded] (logit - max) / temperature."""
    shifted[shifted < log_min_p[:, None]] = -np.inf


def apply_top_k(
    weights: NDArray[np.float32],
    logits: NDArray[np.float32],
    top_k: NDArray[np.int64],
    top_p: NDArray[np.float64],
) -> None:
    """Zero, in place, weights outside top-k, then top-p; 1 <= top_k < vocab, [m]; logits [m, vocab] give the ranks."""
    masses = _descending(weights[:, : logits.shape[1]], int(top_k.max())).astype(np.float64)
    masses[np.arange(masses.shape[1]) >= top_k[:, None]] = 0.0
    sums = np.cumsum(masses, axis=1)
    reached = _prefix(sums, top_p * sums[:, -1])
    _keep_first(weights, logits, np.where(top_p < 1.0, np.minimum(reached, top_k), top_k))


def apply_top_p(weights: NDArray[np.float32], logits: NDArray[np.float32], top_p: NDArray[np.float64]) -> None:
    """Zero, in place, the weights outside top-p (< 1, [m]); logits [m, vocab] give the ranks."""
    vocab_size = logits.shape[1]
    own = weights[:, :vocab_size]
    goal = top_p * tile_sums(weights)[:, -1]
    sums = np.cumsum(_descending(own, min(TOP_P_FIRST_LOOK, vocab_size)).astype(np.float64), axis=1)
    kept = _prefix(sums, goal)
    flat = np.flatnonzero(sums[:, -1] < goal)
    if len(flat):
        whole = np.cumsum(_descending(own[flat], vocab_size).astype(np.float64), axis=1)
        kept[flat] = np.minimum(_prefix(whole, goal[flat]), vocab_size)
    _keep_first(weights, logits, kept)


def apply_xtc(weights: NDArray[np.float32], logits: NDArray[np.float32], thresholds: NDArray[np.float64]) -> None:
    """Zero, in place, weights that XTC excludes; thresholds [m] are shares of the row's mass; above 1: none."""
    for row in np.flatnonzero(thresholds <= 1.0):
        own = weights[row, : logits.shape[1]]
        goal = thresholds[row] * tile_sums(weights[row : row + 1])[0, -1]
        likely = np.flatnonzero((own > 0.0) & (own >= goal))
        if len(likely) > 1:
            ranked = logits[row, likely]
            last = likely[ranked == ranked.min()][-1]
            own[likely[likely != last]] = 0.0


def _descending(values: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """The `count` largest of each row [m, n], largest first: [m, count]."""
    rest = values.shape[1] - count
    largest = np.partition(values, rest, axis=1)[:, rest:] if rest else values
    return np.sort(largest, axis=1)[:, ::-1]


def _prefix(sums: NDArray[np.float64], goal: NDArray[np.float64]) -> NDArray[np.int64]:
    """The number of leading tokens whose mass reaches the goal; one more than the tokens if none does."""
    short: NDArray[np.int64] = np.count_nonzero(sums < goal[:, None], axis=1)
    return short + 1


def _keep_first(weights: NDArray[np.float32], logits: NDArray[np.float32], count: NDArray[np.int64]) -> None:
    """Zero, in place, all weights but those of each row's first `count` tokens in rank order; 1 <= count, [m]."""
    each = np.arange(len(logits))
    last = _descending(logits, int(count.max()))[each, count - 1][:, None]  # the logit of the last token that is kept
    weights[:, : logits.shape[1]][logits < last] = 0.0
    too_many = np.count_nonzero(logits >= last, axis=1) - count
    for row in np.flatnonzero(too_many):  # equal logits across the border
        equal = np.flatnonzero(logits[row] == last[row])
        weights[row, equal[-too_many[row] :]] = 0.0
