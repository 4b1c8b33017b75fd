"""Packs and quantizes weights of checkpoints on all threads of a pool; each weight is read once and written once."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from paged_serve.protocol.gguf.block_formats import BLOCK_FORMATS as FILE_FORMATS

from ...checkpoint.blocks.block_weight import GROUP_INPUTS, PRODUCT_FORMATS, BlockWeight
from ...checkpoint.blocks.grids import GRIDS, grid_of
from ...checkpoint.conversion import NotFiniteError
from ...checkpoint.packed_weight import PackedWeight, WeightFormat
from ...checkpoint.weight_forms import Fp8BlockWeight, Fp8Weight, GroupedWeight, Int8Weight, StoredWeight, Weight
from ...distributed.huge_pages import allocate
from .library import Pool
from .packing import OCTET, PANEL, copy_panels, grouped_format, panel_units, scales_in_units, units_of
from .parameters import PackInt4Params, PackParams, PackPart, QuantizeWeightsParams, packer, pointer
from .structs.blocks import PackBlocksParams

ELEMENTS = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2, torch.int8: 3}  # see weights/stored_elements.h
FORMATS = {
    torch.bfloat16: WeightFormat.BF16,
    torch.float16: WeightFormat.FP16,
    torch.float32: WeightFormat.FP32,
    torch.int8: WeightFormat.INT8,
}
WORD_BYTES = 4
PACK, PART, PACK_INT4 = packer(PackParams), packer(PackPart), packer(PackInt4Params)
PACK_BLOCKS, QUANTIZE_WEIGHTS = packer(PackBlocksParams), packer(QuantizeWeightsParams)


def packed(pool: Pool, weight: Weight, *, must_be_finite: bool = False) -> PackedWeight:
    """Pack `weight` [outputs, inputs] in its own form and dtype; returns it unchanged if it is packed already.

    Raises NotFiniteError if `must_be_finite` and a float is not finite.
    """
    match weight:
        case PackedWeight():
            return weight
        case StoredWeight():
            return packed_rows(pool, weight.parts, weight.dtype, must_be_finite=must_be_finite)
        case BlockWeight():
            return packed_blocks(pool, weight)
        case Int8Weight():
            return packed_rows(pool, [weight.codes], torch.int8, weight.scales.float().contiguous())
        case Fp8Weight():
            return packed_fp8(pool, weight.codes, weight.scales.unsqueeze(1))
        case Fp8BlockWeight():
            return packed_fp8(pool, weight.codes, weight.scales)
        case GroupedWeight():
            assert weight.bits == 4
            return packed_int4(pool, weight)
        case _:
            assert isinstance(weight, Tensor), f"no product supports {type(weight).__name__}"
            return packed_rows(pool, [weight], weight.dtype, must_be_finite=must_be_finite)


def packed_rows(
    pool: Pool,
    parts: Sequence[Tensor],
    dtype: torch.dtype,
    scales: Tensor | None = None,
    *,
    must_be_finite: bool = False,
) -> PackedWeight:
    """Pack stacked `parts` [outputs, inputs]: floats of any dtype, rounded to `dtype`, or int8 codes with `scales`.

    `scales` are [outputs]. Rows may be strided, and may be in a mapped file. Raises NotFiniteError like `packed`.
    """
    if dtype not in FORMATS:
        raise TypeError(f"no packed form for {dtype}; convert it to bfloat16, float16 or float32 first")
    parts = [_readable(part) for part in parts]
    assert all((part.dtype == torch.int8) == (dtype == torch.int8) for part in parts)
    outputs, inputs = sum(len(part) for part in parts), parts[0].shape[1]
    assert all(part.shape[1] == inputs for part in parts)
    words = -(-inputs * dtype.itemsize // WORD_BYTES)
    data = allocate((-(-outputs // PANEL), words, PANEL), torch.int32)
    table = b"".join(PART(part.data_ptr(), part.stride(0), len(part), ELEMENTS[part.dtype]) for part in parts)
    lasting = torch.frombuffer(bytearray(table), dtype=torch.uint8)
    not_finite = torch.zeros(1, dtype=torch.int32)
    pointers = data.data_ptr(), lasting.data_ptr(), not_finite.data_ptr()
    pool.functions["pack_rows"](pool.handle, PACK(*pointers, len(parts), outputs, inputs, ELEMENTS[dtype]))
    if must_be_finite and not_finite.item():
        raise NotFiniteError(f"a matrix of {outputs} outputs and {inputs} inputs is not finite in {dtype}")
    return PackedWeight(FORMATS[dtype], data, outputs, inputs, scales)


def packed_int4(pool: Pool, weight: GroupedWeight) -> PackedWeight:
    """Pack a weight of 4-bit codes; see `pack_int4`."""
    (outputs, inputs), groups, size = weight.shape, weight.scales.shape[1], weight.group_size
    if inputs % groups or size % OCTET:
        raise ValueError(f"{inputs} inputs in {groups} groups: int4 needs groups whose size is a multiple of {OCTET}")
    units = units_of(weight.scales, weight.units)
    scales = scales_in_units(weight.scales, units)
    zeros = None if weight.zeros is None else weight.zeros.contiguous()
    codes = weight.codes if weight.codes.stride(1) == 1 else weight.codes.contiguous()
    header = PANEL * (2 if zeros is None else 3)  # bytes before the codes of a group
    data = allocate((-(-outputs // PANEL), groups, header + PANEL * size // 2), torch.uint8)
    pointers = data.data_ptr(), codes.data_ptr(), scales.data_ptr(), pointer(zeros)
    pool.functions["pack_int4"](pool.handle, PACK_INT4(*pointers, codes.stride(0), outputs, inputs, size))
    rest = panel_units(units), size, zeros is not None, weight.order
    return PackedWeight(grouped_format(weight), data, outputs, inputs, *rest)


def packed_fp8(pool: Pool, codes: Tensor, scales: Tensor) -> PackedWeight:
    """Pack e4m3 `codes` [outputs, inputs] with `scales` [outputs, groups]; is_fp8_product says which."""
    outputs, inputs = codes.shape
    groups = scales.shape[1]
    assert inputs % (groups * WORD_BYTES) == 0, (inputs, groups)
    data = packed_rows(pool, [codes.view(torch.int8)], torch.int8).data  # words of four codes, as those of int8
    panels = allocate((len(data), groups, PANEL), torch.float32)
    copy_panels(panels, scales.float())
    return PackedWeight(WeightFormat.FP8, data, outputs, inputs, panels, scale_inputs=inputs // groups)


def packed_blocks(pool: Pool, weight: BlockWeight) -> PackedWeight:
    """Pack blocks, nothing of which is lost. Raises NotFiniteError if a scale is not finite."""
    outputs, inputs = weight.shape
    parts = [part if part.stride()[1:] == (part.shape[2], 1) else part.contiguous() for part in weight.parts]
    blocks, number = parts[0].shape[1], PRODUCT_FORMATS.index(weight.format)
    data = allocate((-(-outputs // PANEL), blocks, pool.library.panel_block_bytes(number)), torch.uint8)
    table = b"".join(PART(part.data_ptr(), part.stride(0), len(part), 0) for part in parts)
    lasting = torch.frombuffer(bytearray(table), dtype=torch.uint8)
    not_finite = torch.zeros(1, dtype=torch.int32)
    grid = grid_of(weight.format) if weight.format in GRIDS else None
    pointers = data.data_ptr(), lasting.data_ptr(), not_finite.data_ptr()
    per_block = next(each.num_elements for each in FILE_FORMATS.values() if each.name == weight.format)
    sizes = len(parts), outputs, blocks * per_block, number
    pool.functions["pack_blocks"](pool.handle, PACK_BLOCKS(*pointers, *sizes, pointer(grid)))
    if not_finite.item():
        raise NotFiniteError(f"a matrix of {outputs} outputs and {inputs} inputs in {weight.format} is not finite")
    packed = PackedWeight(WeightFormat(weight.format.lower()), data, outputs, inputs, group_size=GROUP_INPUTS)
    return replace(packed, skipped=weight.skipped, dtype=weight.dtype)


def int8_from_floats(pool: Pool, matrix: Tensor, columns: slice) -> tuple[Int8Weight, tuple[float, float]]:
    """Quantize `columns` of `matrix` [outputs, inputs] with scales computed from all columns.

    Also returns the sums of squares of the error and of the values.
    """
    matrix = _readable(matrix)
    first, past, _ = columns.indices(matrix.shape[1])
    codes = allocate((len(matrix), past - first), torch.int8)
    scales = torch.empty(len(matrix), dtype=torch.float32)
    error = _quantize(pool, matrix, codes, scales, first, 0)
    return Int8Weight(codes, scales), error


def int4_from_floats(pool: Pool, matrix: Tensor, group_size: int) -> tuple[GroupedWeight, tuple[float, float]]:
    """Quantize `matrix` [outputs, inputs] of whole groups; also returns the squares of error and values."""
    matrix = _readable(matrix)
    outputs, inputs = matrix.shape
    codes = allocate((outputs, inputs), torch.uint8)
    scales = torch.empty((outputs, inputs // group_size), dtype=torch.float32)
    error = _quantize(pool, matrix, codes, scales, 0, group_size)
    return GroupedWeight(codes, scales, None, bits=4), error


def _quantize(
    pool: Pool, matrix: Tensor, codes: Tensor, scales: Tensor, first: int, group_size: int
) -> tuple[float, float]:
    errors = torch.empty((len(matrix), 2), dtype=torch.float64)
    pointers = codes.data_ptr(), scales.data_ptr(), errors.data_ptr(), matrix.data_ptr()
    sizes = matrix.stride(0), *matrix.shape, first, codes.shape[1], ELEMENTS[matrix.dtype], group_size
    pool.functions["quantize_weights"](pool.handle, QUANTIZE_WEIGHTS(*pointers, *sizes))
    lost, there = errors.sum(0).tolist()
    return lost, there


def _readable(matrix: Tensor) -> Tensor:
    """`matrix` with contiguous rows, in a dtype that the kernels read."""
    if matrix.dtype not in ELEMENTS:
        matrix = matrix.float()
    return matrix if matrix.stride(1) == 1 else matrix.contiguous()
