"""The total order of a row's tokens, used wherever tokens are ranked: higher logit first; equal logits by lower id."""

import numpy as np
from numpy.typing import NDArray

_LOW_32 = np.int64(0xFFFFFFFF)


def rank_keys(logits: NDArray[np.float32], tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Logits of these tokens (finite or -inf; shapes broadcast) -> unique integers, ascending in rank order.

    The high half is the logit's bit pattern, mapped so that ascending integers are descending floats; the low half is
    the token id. Keys are unique, so that the result of a sort or partition does not depend on its algorithm.
    """
    bits = (logits + np.float32(0.0)).view(np.int32)  # -0.0 + 0.0 is 0.0: equal logits get equal bits
    ascending = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
    keys = (~ascending).astype(np.int64)
    keys <<= 32
    keys |= tokens
    return keys


def token_of(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """The token ids in rank keys."""
    return keys & _LOW_32


def best(logits: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """The `count` lowest rank keys of each row, ascending [n, count]; 1 <= count <= vocab."""
    keys = rank_keys(logits, np.arange(logits.shape[1]))
    if count < keys.shape[1]:
        keys = np.partition(keys, count - 1, axis=1)[:, :count]
    return np.sort(keys, axis=1)


def rank_of(logits: NDArray[np.float32], token: int) -> int:
    """The rank of `token` in one row's order [vocab]; 1 is the best."""
    value = logits[token]
    return 1 + int(np.count_nonzero(logits > value)) + int(np.count_nonzero(logits[:token] == value))
