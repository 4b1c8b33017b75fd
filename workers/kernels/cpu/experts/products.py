"""Products of the rows that were dispatched to experts, each expert's with its own weight."""

import torch
from torch import Tensor

from ....checkpoint.packed_weight import BLOCK_FORMATS, PackedWeight, WeightFormat
from ....checkpoint.stacked_experts import padded_outputs
from ....geometry.model_options import Activation
from ..buffers import Buffers
from ..elementwise import activate_fields
from ..gemm import CODES_MULTIPLE, ROW_DTYPES
from ..library import Pool
from ..parameters import DTYPE_CODES, packer, pointer
from ..structs.blocks import ExpertGemmBlocksParams
from ..structs.experts import (
    CountedActivateParams,
    CountedQuantizeParams,
    ExpertGemmInt4Params,
    ExpertGemmInt8Params,
    ExpertGemmParams,
)
from ..structs.fp8 import ExpertGemmFp8Params
from .routing import Routing

GEMM, GEMM_INT8, GEMM_INT4 = map(packer, (ExpertGemmParams, ExpertGemmInt8Params, ExpertGemmInt4Params))
GEMM_BLOCKS, GEMM_FP8 = packer(ExpertGemmBlocksParams), packer(ExpertGemmFp8Params)
ROW_SUMS = (("scales", torch.float32), ("sums", torch.int32))
QUANTIZE, ACTIVATE = packer(CountedQuantizeParams), packer(CountedActivateParams)


def expert_gemm(
    pool: Pool,
    x: Tensor,
    weight: PackedWeight,
    bias: Tensor | None,
    routing: Routing,
    out: Tensor,
    buffers: Buffers,
) -> Tensor:
    """Set `out` [max_places, outputs] to the product of each expert's rows of `x` [max_places, inputs].

    `weight` is a packed stacked_experts() of this rank's experts, `bias` is [experts, outputs] float32. A row has the
    bits of `gemm` with its expert's weight. Places that are not in use may hold anything.
    """
    (places, outputs), experts = out.shape, len(routing.starts) - 1
    assert weight.outputs == experts * padded_outputs(outputs), (weight.outputs, experts, outputs)
    assert weight.order is None
    assert x.shape == (places, weight.inputs)
    assert x.is_contiguous()
    assert out.is_contiguous()
    assert bias is None or (bias.dtype == torch.float32 and bias.shape == (experts, outputs) and bias.is_contiguous())
    slices = routing.starts.data_ptr(), experts
    if weight.format == WeightFormat.INT8:
        codes, scales, sums = _quantized(pool, x, routing, buffers)
        assert weight.scales is not None
        rest = scales.data_ptr(), sums.data_ptr(), weight.scales.data_ptr()
        fields = GEMM_INT8(*_product(codes, weight, bias, out), *rest, *slices)
    else:
        assert x.dtype in ROW_DTYPES[weight.format], (weight.format, x.dtype)
        groups = weight.inputs // weight.group_size if weight.has_zeros else 0
        group_sums = buffers.take("group sums", places, groups, torch.float32) if groups else None
        product, code = _product(x, weight, bias, out), DTYPE_CODES[x.dtype]
        fields = _fields_of_format(weight, product, slices, pointer(group_sums), code)
    pool.functions[f"expert_gemm_{weight.format}"](pool.handle, fields)
    return out


def activate_places(pool: Pool, x: Tensor, activation: Activation, routing: Routing, buffers: Buffers) -> Tensor:
    """`activate` of the places in use."""
    out = buffers.take("activated places", len(x), activation.outputs(x.shape[1]), x.dtype)
    fields = ACTIVATE(*activate_fields(x, activation, out), routing.count_address)
    pool.functions["activate_counted"](pool.handle, fields)
    return out


def _quantized(pool: Pool, x: Tensor, routing: Routing, buffers: Buffers) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales and sums of the places in use, as quantize_rows has them."""
    places, inputs = x.shape
    stride = -(-inputs // CODES_MULTIPLE) * CODES_MULTIPLE
    codes = buffers.take("codes", places, stride, torch.int8)
    scales, sums = (buffers.take(role, places, 1, dtype) for role, dtype in ROW_SUMS)
    pointers = codes.data_ptr(), scales.data_ptr(), sums.data_ptr(), x.data_ptr()
    fields = QUANTIZE(*pointers, x.stride(0), stride, places, inputs, DTYPE_CODES[x.dtype], routing.count_address)
    pool.functions["quantize_counted"](pool.handle, fields)
    return codes, scales, sums


def _fields_of_format(
    weight: PackedWeight, product: tuple[int, ...], slices: tuple[int, int], sums: int, code: int
) -> bytes:
    """As in `gemm`."""
    if weight.format in (WeightFormat.INT4, WeightFormat.MXFP4):
        return GEMM_INT4(*product, sums, pointer(weight.scales), weight.group_size, code, *slices)
    if weight.format in BLOCK_FORMATS:
        return GEMM_BLOCKS(*product, weight.skipped, code, *slices)
    if weight.format == WeightFormat.FP8:
        return GEMM_FP8(*product, pointer(weight.scales), weight.scale_inputs, *slices)
    return GEMM(*product, *slices)


def _product(x: Tensor, weight: PackedWeight, bias: Tensor | None, out: Tensor) -> tuple[int, ...]:
    """The fields of GemmParams."""
    pointers = out.data_ptr(), x.data_ptr(), weight.data.data_ptr(), pointer(bias), 0
    (places, outputs), dtype = out.shape, DTYPE_CODES[out.dtype]
    return *pointers, x.stride(0), out.stride(0), places, outputs, weight.inputs, dtype, 1
