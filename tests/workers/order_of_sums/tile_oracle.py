"""The tile order of summation, defined in csrc/cpu/tiles/tiles.h, computed in numpy number by number."""

import numpy as np
import torch
from torch import Tensor

PIECE = 32  # inputs
SMALLEST = 2.0**-126  # the smallest normal number


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of float32, rounded once; denormal inputs and results are zeros; a and b hold bfloat16."""
    product = without_denormals(a).astype(np.float64) * without_denormals(b).astype(np.float64)  # exact: 16 bits
    return rounded(product, without_denormals(c).astype(np.float64))


def add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return rounded(a.astype(np.float64), b.astype(np.float64))


def rounded(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The exact sum of a and b, float64, rounded to float32."""
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)  # the rounding error in float64
    bits = total.view(np.int64)
    # The last bit is set if the sum is inexact, so that the second rounding sees only true ties.
    toward_zero = np.where((error != 0) & ((error < 0) != (total < 0)), bits - 1, bits)
    odd = np.where(error != 0, toward_zero | 1, toward_zero).view(np.float64)
    return without_denormals(np.where(np.isfinite(total), odd, total).astype(np.float32))


def without_denormals(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < SMALLEST, np.copysign(np.float32(0), x), x).astype(np.float32)


def chained(sums: np.ndarray, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """`sums` [rows, outputs] plus the products of x [rows, inputs] and weight [outputs, inputs], piece by piece."""
    padding = ((0, 0), (0, -x.shape[1] % PIECE))
    x, weight = np.pad(x, padding), np.pad(weight, padding)
    for start in range(0, x.shape[1], PIECE):
        chains = []
        for parity in (0, 1):
            chain = np.zeros_like(sums)
            for k in range(start + parity, start + PIECE, 2):
                chain = fma(x[:, k, None], weight[None, :, k], chain)
            chains.append(chain)
        sums = add(sums, add(*chains))
    return sums


def product(x: Tensor, weight: Tensor) -> Tensor:
    """`x` [rows, inputs] times `weight` [outputs, inputs] transposed, both bfloat16 or float16, in float32."""
    zeros = np.zeros((len(x), len(weight)), np.float32)
    rows, outputs = x.float().numpy(), weight.float().numpy()
    if x.dtype == torch.float16:
        rows, outputs = in_parts(rows, "high high low"), in_parts(outputs, "high low high")
    return torch.from_numpy(chained(zeros, rows, outputs))


def in_parts(x: np.ndarray, names: str) -> np.ndarray:
    """Of each piece of `x` [rows, inputs] the named parts: `high`, the nearest bfloat16, and `low`, the rest."""
    x = np.pad(x, ((0, 0), (0, -x.shape[1] % PIECE)))
    fraction, exponent = np.frexp(x)
    nearest = np.copysign(np.floor(np.abs(fraction) * 256 + 0.5), fraction) / 256
    high = np.ldexp(nearest, exponent).astype(np.float32)
    parts = {"high": high, "low": x - high}
    pieces = [parts[name][:, i : i + PIECE] for i in range(0, x.shape[1], PIECE) for name in names.split()]
    return np.concatenate(pieces, axis=1)


def position_of_key(key: int) -> int:
    """The position of a key in its half of a tile, see csrc/cpu/attention/attention.h."""
    stream, index = divmod(key, 8)
    return index // 2 * 16 + 2 * stream + index % 2


def mean_of_values(values: Tensor) -> Tensor:
    """The mean of `values` [keys, head_dim]: sums in tiles of 128 and ranges of 1024, then a float32 division."""
    total = np.zeros(values.shape[1], np.float32)
    for first in range(0, len(values), 1024):
        sums = np.zeros((1, values.shape[1]), np.float32)
        for start in range(first, min(first + 1024, len(values)), 64):
            rows = values[start : min(start + 64, first + 1024)].float().numpy()
            places = [position_of_key(key) for key in range(len(rows))]
            weights, standing = np.zeros((1, 64), np.float32), np.zeros((64, values.shape[1]), np.float32)
            weights[0, places], standing[places] = 1, rows
            sums = chained(sums, weights, np.ascontiguousarray(standing.T))
        total = add(total, sums[0])
    return torch.from_numpy(total * np.float32(1 / np.float32(len(values))))


def sum_of_rows(x: np.ndarray) -> np.ndarray:
    """The sums [rows] of [rows, n] in the kernels' order: element i in lane i % 16, then halves of the lanes."""
    lanes = np.zeros((len(x), 16), np.float32)
    for start in range(0, x.shape[1], 16):
        part = x[:, start : start + 16]
        lanes[:, : part.shape[1]] = add(lanes[:, : part.shape[1]], part)
    while lanes.shape[1] > 4:
        lanes = add(*np.split(lanes, 2, axis=1))
    return add(add(lanes[:, 0], lanes[:, 2]), add(lanes[:, 1], lanes[:, 3]))


def int4_product(x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor | None) -> Tensor:
    """Like `product`, with codes [outputs, inputs] in groups, and scales and zero points [outputs, groups]."""
    rows, group_size = x.float().numpy(), codes.shape[1] // scales.shape[1]
    total = np.zeros((len(x), len(codes)), np.float32)
    for group in range(scales.shape[1]):
        part = slice(group * group_size, (group + 1) * group_size)
        weight = codes[:, part].float().numpy() - np.float32(8 if zeros is None else 0)
        factors = [rows[:, part], weight]
        if x.dtype == torch.float16:
            factors = [in_parts(rows[:, part], "high low"), in_parts(weight, "high high")]
        value = chained(np.zeros_like(total), *factors)
        if zeros is not None:
            value = fma(-sum_of_rows(rows[:, part])[:, None], zeros[:, group].float().numpy()[None], value)
        total = fma(value, scales[:, group].float().numpy()[None], total)
    return torch.from_numpy(total)
