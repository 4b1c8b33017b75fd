"""Arithmetic on rows whose results have the same bits in every batch and on every machine: sums have a fixed order.

Numpy chooses the order of its sums and products by shape and processor. Sums here run from first to last: they use
numpy's elementwise operations, which are IEEE operations, or its accumulations, which are sequential by definition.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]  # [rows, columns]
SMALLEST_NORM = 1e-12


def add_in_order(total: NDArray[np.float32], rows: Vectors) -> None:
    """Add each of `rows` to `total` [columns], one after another."""
    for row in rows:
        total += row


def mean(rows: Vectors) -> Vectors:
    """The mean of the rows, as one row."""
    total = np.zeros(rows.shape[1], np.float32)
    add_in_order(total, rows)
    return (total / np.float32(len(rows)))[None]


def product(x: Vectors, weight: Vectors, bias: NDArray[np.float32] | None) -> Vectors:
    """x [rows, in] times weight [out, in] transposed, plus bias [out]; float32 sums, in the order of the inputs."""
    total = np.zeros((len(x), len(weight)), np.float32)
    for inputs, weights in zip(x.T, np.ascontiguousarray(weight.T), strict=True):
        total += inputs[:, None] * weights
    return total if bias is None else total + bias


def normalized(x: Vectors) -> Vectors:
    """Each row divided by its length. Squares are computed in float64, where they are exact, and added in order."""
    wide = x.astype(np.float64)
    lengths = np.sqrt(np.add.accumulate(wide * wide, axis=1)[:, -1:])
    return (wide / np.maximum(lengths, SMALLEST_NORM)).astype(np.float32)


def layer_normalized(x: Vectors, weight: NDArray[np.float32], bias: NDArray[np.float32] | None, eps: float) -> Vectors:
    """Each row shifted to mean 0 and scaled to variance 1, then times `weight`, plus `bias`; float64 sums, in order."""
    wide = x.astype(np.float64)
    centred = wide - np.add.accumulate(wide, axis=1)[:, -1:] / x.shape[1]
    variances = np.add.accumulate(centred * centred, axis=1)[:, -1:] / x.shape[1]
    found: Vectors = (centred / np.sqrt(variances + eps) * weight + (0.0 if bias is None else bias)).astype(np.float32)
    return found


def gelu(number: float) -> float:
    """The number times the normal distribution's cumulative probability at it."""
    return number * 0.5 * (1.0 + math.erf(number / math.sqrt(2.0)))


def softmax(x: Vectors) -> Vectors:
    """The softmax of each row, summed from first to last, in double precision."""
    rows = []
    for row in x.tolist():
        weights = [math.exp(number - max(row)) for number in row]
        total = 0.0
        for weight in weights:
            total += weight
        rows.append([weight / total for weight in weights])
    return np.array(rows, np.float32)


def each(function: Callable[[float], float], x: Vectors) -> Vectors:
    """`function` of every number, in double precision."""
    flat = [function(number) for number in x.ravel().tolist()]
    return np.array(flat, np.float32).reshape(x.shape)


def sigmoid(number: float) -> float:
    """1 / (1 + exp(-number)), without overflow."""
    if number >= 0:
        return 1.0 / (1.0 + math.exp(-number))
    power = math.exp(number)
    return power / (1.0 + power)
