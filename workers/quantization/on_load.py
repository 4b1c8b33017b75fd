"""`--quantization`: quantizes float matrices as they are read; codes do not depend on dtype, ranks and threads.

int8: symmetric, one scale per output; the largest weight becomes 127. fp8: the same; the largest becomes 448.
int4: symmetric groups of adjacent inputs. A group's largest weight is one of STEPS steps from zero: the one with the
lowest squared error after the step has been fitted to the codes. Three candidates come within 1 % of sixteen; on
Gaussian weights in groups of 32 the relative error is 8.2 %, and 9.7 % if the largest weight always becomes 7.
csrc/cpu/weights/quantize_weights.cpp does the same on a pool's threads, with the same bits.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..checkpoint.blocks.fp8_codes import fp8_codes, fp8_scales
from ..checkpoint.conversion import check_finite
from ..checkpoint.matrix_reader import FloatReader, MatrixPart, check_cuts
from ..checkpoint.weight_forms import Fp8Weight, GroupedWeight, Int8Weight, Weight
from ..kernels.cpu.library import Pool
from ..kernels.cpu.loading import int4_from_floats, int8_from_floats
from .report import QuantizationReport

STEPS = (7.2, 8.0, 8.8)
WEIGHTS_AT_ONCE = 1 << 18  # few enough that their float32 temporaries stay in the cache


@dataclass(frozen=True, slots=True)
class EightBitsOnLoad:
    """Quantizes to int8 or fp8. A rank with a share of the inputs still reads all inputs to compute the scales."""

    floats: FloatReader
    report: QuantizationReport
    form: type[Int8Weight] | type[Fp8Weight]
    pool: Pool | None  # its threads quantize to int8; None: torch does

    def read(self, name: str, part: MatrixPart) -> Int8Weight | Fp8Weight:
        whole = part if part.dim == 0 else MatrixPart(part.shape, 0, 0, part.shape[0])
        matrix = self.floats.stored(name, whole)
        if self.pool is not None and self.form is Int8Weight:
            weight, error = int8_from_floats(self.pool, matrix, part.inputs)
            _report(self.report, name, matrix, error)
            return weight
        scales = int8_scales(matrix) if self.form is Int8Weight else fp8_scales(matrix)
        if part.dim == 1:
            matrix = matrix[:, part.inputs]
        codes = int8_codes(matrix, scales) if self.form is Int8Weight else fp8_codes_of_matrix(matrix, scales)
        values = squared_error(matrix, codes, lambda codes, at: codes.float() * scales[at].unsqueeze(1))
        _report(self.report, name, matrix, values)
        return self.form(codes, scales)


@dataclass(frozen=True, slots=True)
class Int4OnLoad:
    """Quantizes to int4. Matrices whose inputs are not a whole number of groups are not quantized."""

    floats: FloatReader
    report: QuantizationReport
    group_size: int
    pool: Pool | None  # its threads quantize; None: torch does

    def read(self, name: str, part: MatrixPart) -> Weight:
        if part.shape[1] % self.group_size:
            return self.floats.read(name, part)
        check_cuts(name, part, self.group_size)
        matrix = self.floats.stored(name, part)
        if self.pool is not None:
            weight, error = int4_from_floats(self.pool, matrix, self.group_size)
            _report(self.report, name, matrix, error)
            return weight
        weight = int4_weight(matrix, self.group_size)
        error = squared_error(matrix, weight.codes, lambda codes, at: _values(weight, codes, at))
        _report(self.report, name, matrix, error)
        return weight


def _report(report: QuantizationReport, name: str, matrix: Tensor, error: tuple[float, float]) -> None:
    """Record the error of a matrix. Raises ConfigError if `matrix` is not finite, as the sum of its squares shows."""
    _, there = error
    if not math.isfinite(there):
        check_finite(f"{name}.weight", matrix, lambda: matrix)
    report.error(name, *error)


def int8_scales(matrix: Tensor) -> Tensor:
    """[out] float32."""
    return matrix.abs().amax(1).float() / 127


def int8_codes(matrix: Tensor, scales: Tensor) -> Tensor:
    """The int8 codes [out, in], from -127 to 127."""
    codes = torch.empty(matrix.shape, dtype=torch.int8, device=matrix.device)
    steps = torch.where(scales > 0, scales, 1.0)
    for at in row_blocks(matrix):
        codes[at] = (matrix[at].float() / steps[at].unsqueeze(1)).round_().to(torch.int8)
    return codes


def fp8_codes_of_matrix(matrix: Tensor, scales: Tensor) -> Tensor:
    """The fp8 codes [out, in], float8_e4m3fn."""
    codes = torch.empty(matrix.shape, dtype=torch.float8_e4m3fn, device=matrix.device)
    for at in row_blocks(matrix):
        codes[at] = fp8_codes(matrix[at], scales[at])
    return codes


def int4_weight(matrix: Tensor, group_size: int) -> GroupedWeight:
    """Quantize `matrix` [out, in] in groups of `group_size`, a power of two that divides the inputs."""
    rows, inputs = matrix.shape
    codes = torch.empty((rows, inputs), dtype=torch.uint8, device=matrix.device)
    scales = torch.empty((rows, inputs // group_size), device=matrix.device)
    for at in row_blocks(matrix):
        groups = matrix[at].float().view(-1, inputs // group_size, group_size)
        step = best_step(groups)
        scales[at] = step.squeeze(2)
        codes[at] = (_rounded(groups / torch.where(step != 0, step, 1.0)) + 8).to(torch.uint8).flatten(1)
    return GroupedWeight(codes, scales, None, bits=4)


def best_step(groups: Tensor) -> Tensor:
    """The step of each group: [..., size] float32 -> [..., 1], rounded to bfloat16 as in the kernels; 0 for zeros.

    Its sign puts the group's largest weight on the negative side of the codes, which has one code more.
    """
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    largest = torch.where(-low > high, low, high)
    inverse = torch.where(largest != 0, -1 / largest, 0.0)
    best_step, best_gain = torch.zeros_like(largest), torch.zeros_like(largest)
    for steps in STEPS:
        codes = _rounded(groups * (steps * inverse))
        overlap, norm = _sum_of_group(groups * codes), _sum_of_group(codes * codes)
        step = (overlap / norm.clamp(min=1.0)).bfloat16().float()
        gain = step * (2 * overlap - step * norm)  # the reduction of the group's squared norm by the codes
        better = gain > best_gain
        best_step, best_gain = torch.where(better, step, best_step), torch.where(better, gain, best_gain)
    return best_step


def squared_error(matrix: Tensor, codes: Tensor, values: Callable[[Tensor, slice], Tensor]) -> tuple[float, float]:
    """Sums of squares of the error and of the matrix; `values(codes[at], at)` dequantizes the rows `at`."""
    lost = there = 0.0
    for at in row_blocks(matrix):
        exact = matrix[at].float()
        there += float(exact.square().sum())
        lost += float((values(codes[at], at) - exact).square_().sum())
    return lost, there


def row_blocks(matrix: Tensor) -> Iterator[slice]:
    """Ranges of rows with about WEIGHTS_AT_ONCE weights each."""
    step = max(1, WEIGHTS_AT_ONCE // matrix.shape[1])
    return (slice(start, start + step) for start in range(0, len(matrix), step))


def _values(weight: GroupedWeight, codes: Tensor, at: slice) -> Tensor:
    return GroupedWeight(codes, weight.scales[at], None, weight.bits).dequantized()


def _rounded(steps: Tensor) -> Tensor:
    return steps.round_().clamp_(-8, 7)


def _sum_of_group(x: Tensor) -> Tensor:
    """Sum over the last dimension, a power of two, by repeated halving: the same order of additions everywhere."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x
