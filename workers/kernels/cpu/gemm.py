"""Matrix products with packed weights. A row's bits depend only on that row and the weight."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...checkpoint.packed_weight import BLOCK_FORMATS, PackedWeight, WeightFormat
from .buffers import Buffers
from .library import Pool
from .packing import WORD_INPUTS
from .parameters import (
    DTYPE_CODES,
    EmbedParams,
    GemmInt4Params,
    GemmInt8Params,
    GemmParams,
    QuantizeParams,
    SumPartsParams,
    packer,
    pointer,
)
from .structs.blocks import GemmBlocksParams
from .structs.fp8 import GemmFp8Params

ROW_DTYPES = {
    WeightFormat.BF16: (torch.bfloat16,),
    WeightFormat.FP16: (torch.float16,),
    WeightFormat.FP32: (torch.float32,),
    WeightFormat.INT4: (torch.bfloat16, torch.float16),
    **dict.fromkeys(BLOCK_FORMATS, tuple(DTYPE_CODES)),
    WeightFormat.MXFP4: (torch.bfloat16,),
    WeightFormat.FP8: (torch.bfloat16,),
}
CODES_MULTIPLE = 64  # bytes between rows of codes: whole cache lines
GEMM, GEMM_INT8, GEMM_INT4 = packer(GemmParams), packer(GemmInt8Params), packer(GemmInt4Params)
GEMM_BLOCKS, GEMM_FP8 = packer(GemmBlocksParams), packer(GemmFp8Params)
QUANTIZE, EMBED, SUM_PARTS = packer(QuantizeParams), packer(EmbedParams), packer(SumPartsParams)


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedRows:
    """Activations quantized to int8, for several products with int8 weights."""

    codes: Tensor  # [rows, segments * inputs per segment, rounded up] int8, in -127..127
    scales: Tensor  # [rows, segments] float32; the values of a segment are codes * scale
    sums: Tensor  # [rows, segments] int32, sums of the codes
    inputs: int
    dtype: torch.dtype  # of the rows before quantization

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.codes), self.inputs


def quantize_rows(pool: Pool, x: Tensor, buffers: Buffers | None = None, segments: int = 1) -> QuantizedRows:
    """Quantize `x` [rows, inputs] symmetrically to int8, with one scale for each of a row's equal `segments`.

    The result is in `buffers`, if given. With several segments `x` must be contiguous.
    """
    rows, inputs = x.shape
    assert segments == 1 or x.stride(0) == inputs
    stride = -(-inputs // segments // CODES_MULTIPLE) * CODES_MULTIPLE
    codes = _take(buffers, "codes", rows, segments * stride, torch.int8)
    scales, sums = _take(buffers, "scales", rows, segments), _take(buffers, "sums", rows, segments, torch.int32)
    pointers = codes.data_ptr(), scales.data_ptr(), sums.data_ptr(), x.data_ptr()
    sizes = x.stride(0) // segments, stride, rows * segments, inputs // segments, DTYPE_CODES[x.dtype]
    pool.functions["quantize_rows"](pool.handle, QUANTIZE(*pointers, *sizes))
    return QuantizedRows(codes, scales, sums, inputs, x.dtype)


def gemm(
    pool: Pool,
    x: Tensor | QuantizedRows,
    weight: PackedWeight,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    buffers: Buffers | None = None,
    segments: int = 1,
) -> Tensor:
    """`x` [rows, inputs] times `weight` transposed, plus `bias` [outputs] float32, plus `residual` [rows, outputs].

    The result is summed in float32 (int8: in integers) and rounded once, to `out` [rows, outputs] or a new tensor of
    `out_dtype` (by default that of x). The inputs are 1, 2 or 4 equal `segments`, each summed from 0; their sums are
    added as (0 + 1) + (2 + 3). int8 activations have a scale for each segment. `residual` has the dtype and strides of
    the output, and may be `out` itself. Rows may be strided, but must be contiguous. x is float32 for fp32 weights,
    float16 for fp16, bfloat16 for bf16, fp8 and mxfp4, either 16-bit dtype for int4, any of the three for blocks of
    GGUF files, and these or `QuantizedRows` for int8. Temporary memory comes from `buffers`, if given.
    """
    rows, inputs = x.shape
    assert inputs == weight.inputs, (x.shape, weight.inputs)
    assert segments in (1, 2, 4)
    assert segments == 1 or inputs % (segments * (weight.group_size or WORD_INPUTS)) == 0, (segments, inputs)
    if out is None:
        out = torch.empty((rows, weight.outputs), dtype=out_dtype or x.dtype)
    if weight.format == WeightFormat.INT8:
        x = x if isinstance(x, QuantizedRows) else quantize_rows(pool, x, buffers, segments)
        assert x.scales.shape == (rows, segments)
        rest = x.scales.data_ptr(), x.sums.data_ptr(), pointer(weight.scales)
        fields = GEMM_INT8(*_fields(x.codes, weight, bias, residual, out, segments), *rest)
    else:
        x = _multiplied_rows(x, weight)
        sums = _take(buffers, "group sums", rows, inputs // weight.group_size) if weight.has_zeros else None
        product, code = _fields(x, weight, bias, residual, out, segments), DTYPE_CODES[x.dtype]
        fields = _fields_of_format(weight, product, pointer(sums), code)
    pool.functions[f"gemm_{weight.format}"](pool.handle, fields)
    return out


def sum_parts(pool: Pool, parts: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    """Set `out` [rows, size] to the sum of `parts` [count, rows, size] and `bias` [size], both float32, rounded once.

    Adjacent parts are added first: four parts as (0 + 1) + (2 + 3).
    """
    count, rows, size = parts.shape
    assert out.shape == (rows, size)
    assert bias is None or bias.shape == (size,)
    assert all(each.dtype == torch.float32 and each.is_contiguous() for each in (parts, bias) if each is not None)
    assert out.is_contiguous()
    fields = SUM_PARTS(out.data_ptr(), parts.data_ptr(), pointer(bias), count, rows, size, DTYPE_CODES[out.dtype])
    pool.functions["sum_parts"](pool.handle, fields)
    return out


def embed_rows(
    pool: Pool,
    ids: Tensor,
    table: PackedWeight,
    out_dtype: torch.dtype = torch.bfloat16,
    out: Tensor | None = None,
    multiplier: float = 1.0,
) -> Tensor:
    """Rows `ids` [n] int64 of a packed table of any format but int4, mxfp4 and fp8, times `multiplier`: [n, inputs].

    Rows for ids outside the table are zero. The result is written to `out` or to a new tensor of `out_dtype`.
    """
    if out is None:
        out = torch.empty((len(ids), table.inputs), dtype=out_dtype)
    assert out.shape == (len(ids), table.inputs)
    assert out.stride(1) == 1
    ids = ids.contiguous()
    pointers = out.data_ptr(), ids.data_ptr(), table.data.data_ptr(), pointer(table.scales)
    sizes = len(ids), table.outputs, table.inputs, DTYPE_CODES[out.dtype]
    pool.functions[f"embed_{table.format}"](pool.handle, EMBED(*pointers, out.stride(0), *sizes, multiplier))
    return out


def _fields_of_format(weight: PackedWeight, product: tuple[int, ...], sums: int, code: int) -> bytes:
    """The parameters of a product with rows that are not quantized, of the dtype with `code`.

    `product`: the fields of GemmParams; `sums`: the address for sums of groups, which zero points need.
    """
    if weight.format in (WeightFormat.INT4, WeightFormat.MXFP4):
        return GEMM_INT4(*product, sums, pointer(weight.scales), weight.group_size, code)
    if weight.format in BLOCK_FORMATS:
        return GEMM_BLOCKS(*product, weight.skipped, code)
    if weight.format == WeightFormat.FP8:
        return GEMM_FP8(*product, pointer(weight.scales), weight.scale_inputs)
    return GEMM(*product)


def _multiplied_rows(x: Tensor | QuantizedRows, weight: PackedWeight) -> Tensor:
    """`x` in the order of the weight's inputs. Raises TypeError if no product of its format takes the dtype of `x`."""
    if isinstance(x, QuantizedRows) or x.dtype not in ROW_DTYPES[weight.format]:
        known = " or ".join(map(str, ROW_DTYPES[weight.format]))
        raise TypeError(f"{weight.format} weights need {known} rows, not {x.dtype}")
    return x if weight.order is None else x[:, weight.order]


def _take(buffers: Buffers | None, role: str, rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty((rows, columns), dtype=dtype) if buffers is None else buffers.take(role, rows, columns, dtype)


def _fields(
    x: Tensor, weight: PackedWeight, bias: Tensor | None, residual: Tensor | None, out: Tensor, segments: int
) -> tuple[int, ...]:
    """The fields of GemmParams."""
    rows, outputs = out.shape
    (x_stride, x_step), (y_stride, y_step) = x.stride(), out.stride()
    assert (rows, outputs, x_step, y_step) == (len(x), weight.outputs, 1, 1), (x.shape, weight.outputs, out.shape)
    assert bias is None or (bias.dtype == torch.float32 and bias.shape == (outputs,) and bias.is_contiguous())
    assert residual is None or (residual.dtype == out.dtype and residual.stride() == (y_stride, 1))
    pointers = out.data_ptr(), x.data_ptr(), weight.data.data_ptr(), pointer(bias), pointer(residual)
    return (*pointers, x_stride, y_stride, rows, outputs, weight.inputs, DTYPE_CODES[out.dtype], segments)
