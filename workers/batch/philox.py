"""Philox4x32-10, a counter-based random generator: a number is a function of (key, counter) only.

There is no state to carry, save or restore: the uniform number of a request's output position is the same whether
the position is sampled in a batch of one, in a batch of 128, or again after a preemption or a crash.
"""

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW_32 = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_ROUNDS = 10


def philox4x32(counter: NDArray[np.uint64], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Four random 32-bit words for each of n (counter, key) pairs: [4, n] and [2, n] of 32-bit words -> [4, n]."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0 = c0 * _MULTIPLIERS[0]  # 32 x 32 bits fit uint64
        product1 = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> _32) ^ c1 ^ k0,
            product1 & _LOW_32,
            (product0 >> _32) ^ c3 ^ k1,
            product0 & _LOW_32,
        )
        k0 = (k0 + _KEY_STEPS[0]) & _LOW_32
        k1 = (k1 + _KEY_STEPS[1]) & _LOW_32
    return np.stack((c0, c1, c2, c3))


def uniforms(seeds: NDArray[np.int64], positions: NDArray[np.int64], stream: int = 0) -> NDArray[np.float64]:
    """A number in [0, 1) with 53 random bits for each (seed, output position); both [n], not negative.

    Numbers of different streams are independent.
    """
    key = seeds.astype(np.uint64)
    counter = np.zeros((4, len(seeds)), np.uint64)
    counter[0] = positions.astype(np.uint64) & _LOW_32
    counter[1] = positions.astype(np.uint64) >> _32
    counter[2] = stream
    words = philox4x32(counter, np.stack((key & _LOW_32, key >> _32)))
    high, low = words[0] >> np.uint64(5), words[1] >> np.uint64(6)  # 27 and 26 bits
    uniform: NDArray[np.float64] = (high.astype(np.float64) * 2.0**26 + low.astype(np.float64)) * 2.0**-53
    return uniform
