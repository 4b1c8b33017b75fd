"""The canonical forms of a weight matrix: readers produce them; products and packing accept them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .blocks.block_weight import BlockWeight, stacked_blocks
from .blocks.dequantize import E2M1_TWICE
from .packed_weight import PackedWeight


@dataclass(frozen=True, slots=True, eq=False)
class OutputScaledWeight:
    """A matrix with one scale per output. Activations are quantized to the same dtype, one scale per token (W8A8)."""

    codes: Tensor  # [out, in] of 8 bits
    scales: Tensor  # [out] float32; weight = codes * scales

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes once packed."""
        return self.codes.nbytes + self.scales.nbytes

    def dequantized(self) -> Tensor:
        """The values [out, in] float32."""
        return self.codes.float() * self.scales.unsqueeze(1)


@dataclass(frozen=True, slots=True, eq=False)
class Int8Weight(OutputScaledWeight):
    """An OutputScaledWeight with int8 codes."""


@dataclass(frozen=True, slots=True, eq=False)
class Fp8Weight(OutputScaledWeight):
    """An OutputScaledWeight with float8_e4m3fn codes."""


@dataclass(frozen=True, slots=True, eq=False)
class Fp8BlockWeight:
    """A matrix in e4m3 with a scale for each output and group of inputs; activations are float (weight-only)."""

    codes: Tensor  # [out, in] float8_e4m3fn
    scales: Tensor  # [out, groups] float32; weight = codes * scales
    form: str  # for users

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes once packed."""
        return self.codes.nbytes + self.scales.nbytes

    def dequantized(self) -> Tensor:
        """The values [out, in] float32."""
        grouped = self.codes.float().view(*self.scales.shape, -1)
        return grouped.mul_(self.scales.unsqueeze(2)).flatten(1)


@dataclass(frozen=True, slots=True, eq=False)
class GroupedWeight:
    """A matrix with a scale (and zero point) for each output and group of inputs; activations are float (weight-only).

    Column j of `codes` multiplies input `order[j]`: groups of columns are contiguous and equally large.
    """

    codes: Tensor  # [out, in] uint8, 0 to 2^bits - 1
    scales: Tensor  # [out, groups] float32; weight = (codes - zeros) * scales, or E2M1_TWICE[codes] * scales
    zeros: Tensor | None  # [out, groups] uint8; None: 2^(bits - 1) everywhere
    bits: int  # 4 or 8
    order: Tensor | None = None  # [in] int64, a permutation; None: the order of the inputs
    is_e2m1: bool = False  # codes are 4-bit floats, without zero points
    units: Tensor | None = None  # [out] float32, in which scales have 11 bits at most; None: one power of two for all

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def group_size(self) -> int:
        return self.codes.shape[1] // self.scales.shape[1]

    @property
    def layout(self) -> tuple[int, int, bool, bool]:
        """What must be equal of weights that are stacked, besides the order."""
        return self.bits, self.group_size, self.is_e2m1, self.units is None

    @property
    def middle(self) -> int:
        """The code of zero in a weight without zero points."""
        return 1 << (self.bits - 1)

    @property
    def nbytes(self) -> int:
        """Bytes when packed: codes at their own width, scales as bfloat16; without units."""
        zeros = 0 if self.zeros is None else self.zeros.numel() * self.bits // 8
        return self.codes.numel() * self.bits // 8 + 2 * self.scales.numel() + zeros

    def dequantized(self) -> Tensor:
        """The values [out, in] float32, columns in the order of the inputs."""
        rows, groups = self.scales.shape
        if self.is_e2m1:
            values = torch.tensor(E2M1_TWICE, device=self.codes.device)[self.codes.int()]
            return (values.view(rows, groups, -1) * self.scales.unsqueeze(2)).flatten(1)
        grouped = self.codes.view(rows, groups, -1).float()
        zeros = self.middle if self.zeros is None else self.zeros.float().unsqueeze(2)
        values = ((grouped - zeros) * self.scales.unsqueeze(2)).flatten(1)
        return values if self.order is None else values[:, torch.argsort(self.order)]


@dataclass(frozen=True, slots=True, eq=False)
class StoredWeight:
    """A float matrix in the checkpoint's mapped files, in its stored dtype, to be rounded to `dtype`.

    Its data is not read yet: packing reads it once, on all threads of the pool.
    """

    parts: tuple[Tensor, ...]  # stacked, [rows, in] each
    dtype: torch.dtype
    blocks: str = ""  # the block format that the values were dequantized from
    is_cut: bool = False  # a rank's share that is dequantized only because it cuts a group of inputs

    @property
    def shape(self) -> tuple[int, int]:
        return sum(len(part) for part in self.parts), self.parts[0].shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes once packed."""
        return math.prod(self.shape) * self.dtype.itemsize

    def tensor(self) -> Tensor:
        """The matrix [out, in]; it is the mapped file itself if there is one part, of this dtype."""
        parts = [part.to(self.dtype) for part in self.parts]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


# A Tensor is a float matrix [out, in], like a StoredWeight. A PackedWeight is for the CPU kernels only.
Weight = Tensor | StoredWeight | Int8Weight | Fp8Weight | Fp8BlockWeight | GroupedWeight | BlockWeight | PackedWeight


def float_values(weight: Weight) -> Tensor:
    """The values [out, in], not yet rounded to the model's dtype."""
    match weight:
        case Tensor():
            return weight
        case StoredWeight():
            return torch.cat([part.to(torch.promote_types(part.dtype, weight.dtype)) for part in weight.parts])
        case PackedWeight():
            raise TypeError("packed")
        case _:
            return weight.dequantized()


def form_of(weight: Weight) -> str:
    """The form of a weight as text, such as "int4 g32"."""
    match weight:
        case BlockWeight():
            return weight.format
        case Int8Weight():
            return "int8"
        case Fp8Weight():
            return "fp8"
        case Fp8BlockWeight():
            return weight.form
        case GroupedWeight() if weight.is_e2m1:
            return "mxfp4" if weight.units is None else "nvfp4"
        case GroupedWeight():
            zeros = "" if weight.zeros is None else " with zero points"
            order = "" if weight.order is None else " in activation order"
            return f"int{weight.bits} g{weight.group_size}{zeros}{order}"
        case _:
            return "float"


def joined(parts: Sequence[Weight]) -> list[Weight]:
    """Stack projections of the same input along their outputs where adjacent ones have the same form.

    Often a single matrix results. q, k and v of a checkpoint may differ: one may be unquantized, or each may have its
    own activation order.
    """
    stacked: list[Weight] = []
    for part in parts:
        both = _stack(stacked[-1], part) if stacked else None
        if both is None:
            stacked.append(part)
        else:
            stacked[-1] = both
    return stacked


def each_tensor(weight: Weight, change: Callable[[Tensor], Tensor]) -> Weight:
    """Apply `change` to every tensor of the weight whose rows are outputs."""
    match weight:
        case StoredWeight():
            return replace(weight, parts=tuple(change(part) for part in weight.parts))
        case BlockWeight():
            return weight.changed(change)
        case Int8Weight() | Fp8Weight() | Fp8BlockWeight():
            return replace(weight, codes=change(weight.codes), scales=change(weight.scales))
        case GroupedWeight():
            zeros = None if weight.zeros is None else change(weight.zeros)
            units = None if weight.units is None else change(weight.units)
            return replace(weight, codes=change(weight.codes), scales=change(weight.scales), zeros=zeros, units=units)
        case _:
            assert isinstance(weight, Tensor), "packed"
            return change(weight)


def with_outputs(weight: Weight, count: int) -> Weight:
    """Pad the weight with zeros to `count` outputs."""
    missing = count - weight.shape[0]
    if missing and isinstance(weight, BlockWeight):
        return weight.padded(missing)
    if missing and isinstance(weight, StoredWeight):
        zeros = torch.zeros(missing, weight.shape[1], dtype=weight.dtype)
        return replace(weight, parts=(*weight.parts, zeros))
    return weight if missing == 0 else each_tensor(weight, lambda part: _zeros_below(part, missing))


def with_rows(weight: Weight, order: Tensor) -> Weight:
    """The outputs `order` [n] i64 of `weight`, in this order; a StoredWeight must have one part."""
    assert not isinstance(weight, StoredWeight) or len(weight.parts) == 1
    return each_tensor(weight, lambda part: part[order])


def on_device(weight: Weight, device: str) -> Weight:
    moved = each_tensor(weight, lambda part: part.to(device))
    if isinstance(moved, GroupedWeight) and moved.order is not None:
        return replace(moved, order=moved.order.to(device))
    return moved


def _stack(upper: Weight, lower: Weight) -> Weight | None:
    """The two as one matrix; None if they differ in form."""
    match upper, lower:
        case Tensor(), Tensor():
            return torch.cat([upper, lower])
        case Tensor() | StoredWeight(), Tensor() | StoredWeight():
            (above, dtype), (below, other) = _float_parts(upper), _float_parts(lower)
            return StoredWeight(above + below, dtype) if dtype == other else None
        case BlockWeight(), BlockWeight():
            return stacked_blocks(upper, lower)
        case Int8Weight(), Int8Weight():
            return Int8Weight(torch.cat([upper.codes, lower.codes]), torch.cat([upper.scales, lower.scales]))
        case Fp8Weight(), Fp8Weight():
            return Fp8Weight(torch.cat([upper.codes, lower.codes]), torch.cat([upper.scales, lower.scales]))
        case Fp8BlockWeight(), Fp8BlockWeight() if upper.scales.shape[1] == lower.scales.shape[1]:
            codes, scales = torch.cat([upper.codes, lower.codes]), torch.cat([upper.scales, lower.scales])
            return Fp8BlockWeight(codes, scales, upper.form)
        case GroupedWeight(), GroupedWeight() if _have_same_layout(upper, lower):
            zeros = None
            if upper.zeros is not None or lower.zeros is not None:
                zeros = torch.cat([_explicit_zeros(upper), _explicit_zeros(lower)])
            codes, scales = torch.cat([upper.codes, lower.codes]), torch.cat([upper.scales, lower.scales])
            units = stacked_units([upper, lower])
            return replace(upper, codes=codes, scales=scales, zeros=zeros, units=units)
        case _:
            return None


def stacked_units(parts: Sequence[GroupedWeight]) -> Tensor | None:
    """The units of all outputs of `parts`; all or none have some."""
    units = [part.units for part in parts if part.units is not None]
    return torch.cat(units) if units else None


def _float_parts(weight: Tensor | StoredWeight) -> tuple[tuple[Tensor, ...], torch.dtype]:
    return ((weight,), weight.dtype) if isinstance(weight, Tensor) else (weight.parts, weight.dtype)


def _have_same_layout(one: GroupedWeight, other: GroupedWeight) -> bool:
    if one.layout != other.layout:
        return False
    if one.order is None or other.order is None:
        return one.order is other.order
    return torch.equal(one.order, other.order)


def _explicit_zeros(weight: GroupedWeight) -> Tensor:
    if weight.zeros is not None:
        return weight.zeros
    return torch.full(weight.scales.shape, weight.middle, dtype=torch.uint8, device=weight.codes.device)


def _zeros_below(tensor: Tensor, count: int) -> Tensor:
    return torch.cat([tensor, tensor.new_zeros(count, *tensor.shape[1:])])
