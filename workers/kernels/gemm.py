"""Matrix products with packed weights. A row's bits depend on that row, the weight and the instruction set alone."""

import ctypes

import torch
from torch import Tensor

from .cpu import GemmParams, Pool
from .packing import PackedWeight, WeightFormat

ROW_DTYPES = {WeightFormat.BF16: torch.bfloat16, WeightFormat.FP32: torch.float32}


def gemm(
    pool: Pool,
    x: Tensor,
    weight: PackedWeight,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """`x` [rows, inputs] times `weight` transposed, plus `bias` [outputs] float32, plus `residual` [rows, outputs].

    Summed in float32 and rounded once, to `out` [rows, outputs] or a new tensor of `out_dtype` (by default x's dtype;
    bfloat16 or float32). `residual` has the dtype and strides of the output, and may be `out` itself. Rows may be
    strided, their elements may not.
    """
    if x.dtype != ROW_DTYPES[weight.format]:
        raise TypeError(f"{weight.format} weights multiply {ROW_DTYPES[weight.format]} rows, not {x.dtype}")
    rows, inputs = x.shape
    if out is None:
        out = x.new_empty((rows, weight.outputs), dtype=out_dtype)
    assert (inputs, *out.shape) == (weight.inputs, rows, weight.outputs), (x.shape, out.shape, weight)
    assert x.stride(1) == out.stride(1) == 1
    assert out.dtype in (torch.bfloat16, torch.float32)
    assert bias is None or (bias.dtype == torch.float32 and bias.is_contiguous() and len(bias) == weight.outputs)
    assert residual is None or (residual.dtype == out.dtype and residual.stride() == out.stride())
    params = GemmParams(
        y=out.data_ptr(),
        x=x.data_ptr(),
        weight=weight.data.data_ptr(),
        bias=None if bias is None else bias.data_ptr(),
        residual=None if residual is None else residual.data_ptr(),
        x_stride=x.stride(0),
        y_stride=out.stride(0),
        rows=rows,
        outputs=weight.outputs,
        inputs=inputs,
        y_is_float=out.dtype == torch.float32,
    )
    pool.functions[f"gemm_{weight.format}"](pool.handle, ctypes.byref(params))
    return out
