"""The definition of the kernels' arithmetic in numpy, independent of instruction sets: slow, but exact to the bit.

* Denormal inputs and results are zeros.
* Pairs of 16-bit inputs: the odd product first, then the even one, each added by a fused multiply-add.
* Sums over many elements have 16 lanes: element i is added to lane i % 16.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
SMALLEST = np.float32(2.0**-126)  # the smallest normal number


def flushed(x: Floats) -> Floats:
    """x with denormals replaced by zeros of the same sign."""
    return np.where(np.abs(x) < SMALLEST, np.copysign(np.float32(0), x), x)


def fma(a: Floats, b: Floats, c: Floats) -> Floats:
    """a * b + c rounded once, computed with exact doubles rounded to odd."""
    a, b, c = np.broadcast_arrays(*(flushed(np.asarray(x, np.float32)) for x in (a, b, c)))
    with np.errstate(all="ignore"):
        product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
        total = product + addend
        larger = np.where(np.abs(product) > np.abs(addend), product, addend)
        smaller = np.where(np.abs(product) > np.abs(addend), addend, product)
        lost = smaller - (total - larger)  # exact
        inexact = np.isfinite(total) & (lost != 0) & (total.view(np.int64) % 2 == 0)
        odd = np.where(inexact, np.nextafter(total, np.where(lost > 0, np.inf, -np.inf)), total)
        return single(odd)


def single(exact: Doubles) -> Floats:
    """Round to float32. A result is denormal if it is below the smallest normal number after rounding to 24 bits."""
    with np.errstate(all="ignore"):
        scaled = np.ldexp(exact, 64)  # so that it is not denormal
        is_tiny = np.abs(scaled.astype(np.float32)) < np.float32(2.0**-62)
        is_small = np.abs(exact) < 2.0**-100
        return np.where(is_small & is_tiny, np.copysign(np.float32(0), exact), exact.astype(np.float32)).astype(
            np.float32
        )


def add(a: Floats, b: Floats) -> Floats:
    return single(flushed(a).astype(np.float64) + flushed(b).astype(np.float64))


def times(a: Floats, b: Floats) -> Floats:
    return single(flushed(a).astype(np.float64) * flushed(b).astype(np.float64))


def chain(x: Floats, weight: Floats, is_paired: bool) -> Floats:
    """One chain over K from zero: `x` [rows, inputs], `weight` [outputs, inputs] -> [rows, outputs]."""
    inputs = x.shape[1]
    if is_paired:
        zeros = np.zeros((1, inputs % 2), np.float32)
        x, weight = (np.concatenate([m, zeros.repeat(len(m), 0)], 1) for m in (x, weight))
        order = [k ^ 1 for k in range(x.shape[1])]
    else:
        order = list(range(inputs))
    total = np.zeros((len(x), len(weight)), np.float32)
    for k in order:
        total = fma(x[:, k, None], weight[None, :, k], total)
    return total


def product(x: Floats, weight: Floats, is_paired: bool, segments: int = 1) -> Floats:
    """The product of `x` and `weight`: segments are summed separately, and added as (0 + 1) + (2 + 3)."""
    parts = zip(np.split(x, segments, 1), np.split(weight, segments, 1), strict=True)
    return added([chain(a, b, is_paired) for a, b in parts])


def int4_product(x: Floats, codes: Floats, zeros: Floats | None, scales: Floats, segments: int = 1) -> Floats:
    """The product with int4 `codes` [outputs, inputs]; `zeros` (by default 8) and `scales` are [outputs, groups]."""
    groups = scales.shape[1]
    size, per_segment = x.shape[1] // groups, groups // segments
    parts = []
    for segment in range(segments):
        total = np.zeros((len(x), len(codes)), np.float32)
        for group in range(segment * per_segment, (segment + 1) * per_segment):
            at = slice(group * size, (group + 1) * size)
            if zeros is None:
                value = chain(x[:, at], codes[:, at] - np.float32(8), True)
            else:
                sums = np.array([lane_sum([row]) for row in x[:, at]], np.float32)
                value = fma(-sums[:, None], zeros[None, :, group], chain(x[:, at], codes[:, at], True))
            total = fma(value, scales[None, :, group], total)
        parts.append(total)
    return added(parts)


def added(parts: list[Floats]) -> Floats:
    """The sum of the parts: adjacent parts are added first, then adjacent sums."""
    if len(parts) == 1:
        return parts[0]
    return added([add(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)])


def lane_sum(chains: list[Floats]) -> np.float32:
    """The sum of up to four chains of elements, each with 16 lanes: chains are added by lane, then halves of lanes."""
    return across([_lanes(chain) for chain in chains])


def _lanes(x: Floats) -> Floats:
    lanes = np.zeros(16, np.float32)
    for start in range(0, len(x), 16):
        part = np.pad(x[start : start + 16], (0, max(0, start + 16 - len(x))))
        lanes = add(lanes, part)
    return lanes


def across(chains: list[Floats]) -> np.float32:
    """The sum of the lanes [16] of 1, 2 or 4 chains."""
    lanes = added(chains)
    lanes = add(lanes[:8], lanes[8:])
    lanes = add(lanes[:4], lanes[4:])
    return np.float32(add(add(lanes[0], lanes[2]), add(lanes[1], lanes[3])))


def sum_of_squares(x: Floats) -> np.float32:
    """The sum of squares: whole groups of 64 in four chains of 16 lanes, the rest in the first chain."""
    chains = [np.zeros(16, np.float32) for _ in range(4)]
    whole = len(x) // 64 * 64
    for start in range(0, len(x), 16):
        part = np.pad(x[start : start + 16], (0, max(0, start + 16 - len(x))))
        at = start // 16 % 4 if start < whole else 0
        chains[at] = fma(part, part, chains[at])
    return across(chains)


def norm(hidden: Floats, weight: Floats, eps: float) -> Floats:
    """`hidden` [rows, size] scaled to unit mean square, times `weight`, not yet rounded to the stored dtype."""
    squares = np.array([sum_of_squares(row) for row in hidden], np.float32)
    mean = add(single(squares.astype(np.float64) / np.float64(hidden.shape[1])), np.float32(eps))
    scale = (np.float32(1) / np.sqrt(mean)).astype(np.float32)
    return times(times(hidden, scale[:, None]), weight)


def bf16(x: Floats) -> Tensor:
    """Round to bfloat16, to nearest even; denormals become zeros."""
    return torch.from_numpy(flushed(x)).bfloat16()
