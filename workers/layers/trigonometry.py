"""Cosine and sine from IEEE additions and multiplications: library functions differ in the last bits by processor."""

import math

import numpy as np
from numpy.typing import NDArray

_QUARTER_TURNS = 2 / math.pi
# pi / 2 in three parts. The first two have 28 bits, so that their multiples up to 2^25 are exact.
_PI_HALVES = (float.fromhex("0x1.921fb54p+0"), float.fromhex("0x1.10b4610p-30"), float.fromhex("0x1.a62633145c06ep-58"))
_SINE = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(8))  # of powers of the square, up to x^15
_COSINE = tuple((-1) ** k / math.factorial(2 * k) for k in range(9))  # up to x^16
LONGEST = 10000.0  # of the wavelengths of positions, in units of the first
Angles = NDArray[np.float64]


def cosine_and_sine(angles: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines of `angles` in radians, below 2^25 quarter turns; computed in double, rounded once."""
    exact = angles.astype(np.float64)
    turns = np.rint(exact * _QUARTER_TURNS)
    part = exact
    for fraction in _PI_HALVES:
        part = part - turns * fraction
    square = part * part
    sine, cosine = _polynomial(square, _SINE) * part, _polynomial(square, _COSINE)
    quarter = turns.astype(np.int64)
    is_odd = quarter % 2 == 1
    cosine, sine = np.where(is_odd, sine, cosine), np.where(is_odd, cosine, sine)
    np.negative(cosine, out=cosine, where=(quarter + 1) % 4 >= 2)
    np.negative(sine, out=sine, where=quarter % 4 >= 2)
    return cosine.astype(np.float32), sine.astype(np.float32)


def sinusoids(first: int, count: int, size: int) -> NDArray[np.float32]:
    """The vectors of positions from `first` on, [count, size]: sines of all wavelengths, then cosines.

    They are those of "Attention Is All You Need", arXiv 1706.03762, 3.5.
    """
    half = size // 2
    step = np.float32(-math.log(LONGEST) / max(half - 1, 1))
    frequencies = [math.exp(each) for each in (np.arange(half, dtype=np.float32) * step).tolist()]
    positions = np.arange(first, first + count, dtype=np.float32)
    cosines, sines = cosine_and_sine(positions[:, None] * np.array(frequencies, dtype=np.float32))
    return np.concatenate([sines, cosines], axis=1)


def _polynomial(square: Angles, coefficients: tuple[float, ...]) -> Angles:
    """Sum of coefficients[k] * square^k."""
    total = np.full_like(square, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total *= square
        total += coefficient
    return total
