"""Products of rows sorted by expert, each expert's with its own weight, and of rows in segments of their inputs."""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from ....checkpoint.stacked_experts import padded_outputs
from ..kernel import SCALARS, Kernel, Launcher, pointer
from .routing import Places

INPUTS_MULTIPLE = 8  # of a group: copies of 16 bytes
TILE_INPUTS = 64
MAX_DEPTH = 65535  # of a grid


class ExpertProductParams(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("out", "x", "weight", "bias", "sources", "starts")),
        *(
            (name, ctypes.c_int64)
            for name in ("x_stride", "weight_stride", "x_group", "weight_group", "out_group", "out_stride")
        ),
        *((name, ctypes.c_int) for name in ("rows", "inputs", "outputs")),
    )


class Shape(NamedTuple):
    """How a block's tile is divided among its warps; every shape gives the same bits."""

    warp_rows: int
    warp_columns: int
    row_parts: int
    column_pairs: int
    ring: int

    @property
    def rows(self) -> int:
        return 16 * self.warp_rows * self.row_parts

    @property
    def columns(self) -> int:
        return 16 * self.warp_columns * self.column_pairs


SMALL, LARGE = Shape(1, 4, 1, 1, 4), Shape(2, 2, 2, 4, 3)
ROW_BYTES = (TILE_INPUTS // 8 | 1) * 16  # of shared memory


def expert_product(
    launcher: Launcher,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    places: Places,
    out: Tensor,
    *,
    gathers: bool = False,
) -> Tensor:
    """Set `out` [places, outputs] to the product of each place's row of `x` and its expert's part of `weight`.

    `weight` is a stacked_experts() of this rank's experts [experts * padded outputs, inputs], `bias` is [experts,
    outputs] float32. `x` is [places, inputs] or, with `gathers`, [rows, inputs]. `out` has the dtype of `x` or float32;
    places that are not in use are not written.
    """
    (count, outputs), (rows, inputs), held = out.shape, x.shape, len(places.starts) - 1
    padded = padded_outputs(outputs)
    assert count == len(places.sources), count
    assert rows == (len(places.places) if gathers else count), rows
    assert weight.shape == (held * padded, inputs), (weight.shape, held, padded)
    assert bias is None or (bias.dtype == torch.float32 and bias.shape == (held, outputs) and bias.is_contiguous())
    _check(x, weight, out, inputs)
    pointers = out.data_ptr(), x.data_ptr(), weight.data_ptr(), pointer(bias)
    sorted_by = places.sources.data_ptr() if gathers else None, places.starts.data_ptr()
    strides = x.stride(0), inputs, 0, padded * inputs, 0, outputs
    shape = shape_for(count, held)
    if count and held:
        grid = _grid(shape, outputs, held, -(-count // held))
        params = ExpertProductParams(*pointers, *sorted_by, *strides, 0, inputs, outputs)
        launcher.launch(product_kernel(x.dtype, out.dtype, shape), grid, params)
    return out


def segmented_product(launcher: Launcher, x: Tensor, weight: Tensor, segments: int) -> Tensor:
    """The product of `x` [rows, inputs] and `weight` [outputs, inputs] in equal parts of the inputs.

    Returns [segments, rows, outputs] float32, to be added.
    """
    (rows, inputs), outputs = x.shape, len(weight)
    part = inputs // segments
    assert weight.shape == (outputs, inputs), weight.shape
    assert part * segments == inputs, (inputs, segments)
    out = torch.empty((segments, rows, outputs), dtype=torch.float32, device=x.device)
    _check(x, weight, out, part)
    strides = x.stride(0), inputs, part, part, rows * outputs, outputs
    pointers = out.data_ptr(), x.data_ptr(), weight.data_ptr(), None, None, None
    shape = shape_for(rows, 8)
    if rows:
        params = ExpertProductParams(*pointers, *strides, rows, part, outputs)
        launcher.launch(product_kernel(x.dtype, out.dtype, shape), _grid(shape, outputs, segments, rows), params)
    return out


def head_product(launcher: Launcher, x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """Set `out` [rows, heads, outputs] to the product of `x` [rows, heads, inputs] and each head's own weight.

    `weight` is stacked like experts: [heads * padded outputs, inputs]. Rows and heads of `x` and `out` may be strided.
    """
    (rows, heads, inputs), outputs = x.shape, out.shape[2]
    padded = padded_outputs(outputs)
    assert out.shape[:2] == (rows, heads), out.shape
    assert out.dtype == x.dtype == weight.dtype, (out.dtype, x.dtype, weight.dtype)
    assert weight.shape == (heads * padded, inputs), (weight.shape, heads, padded)
    assert weight.is_contiguous()
    assert x.stride(2) == out.stride(2) == 1
    assert inputs % INPUTS_MULTIPLE == x.stride(0) % INPUTS_MULTIPLE == x.stride(1) % INPUTS_MULTIPLE == 0
    assert outputs % 2 == out.stride(0) % 2 == out.stride(1) % 2 == 0
    assert x.data_ptr() % 16 == weight.data_ptr() % 16 == out.data_ptr() % 4 == 0
    strides = x.stride(0), inputs, x.stride(1), padded * inputs, out.stride(1), out.stride(0)
    pointers = out.data_ptr(), x.data_ptr(), weight.data_ptr(), None, None, None
    shape = shape_for(rows, 8)
    if rows:
        params = ExpertProductParams(*pointers, *strides, rows, inputs, outputs)
        launcher.launch(product_kernel(x.dtype, out.dtype, shape), _grid(shape, outputs, heads, rows), params)
    return out


def shape_for(count: int, held: int) -> Shape:
    """Small tiles if an expert has at most 16 of the `count` places on average."""
    return SMALL if count <= SMALL.rows * held else LARGE


def product_kernel(dtype: torch.dtype, out: torch.dtype, shape: Shape) -> Kernel:
    defines = (
        *(("SCALAR", SCALARS[dtype]), ("OUT", SCALARS[out])),
        *(("WARP_ROWS", shape.warp_rows), ("WARP_COLUMNS", shape.warp_columns)),
        *(("ROW_PARTS", shape.row_parts), ("COLUMN_PAIRS", shape.column_pairs), ("RING", shape.ring)),
    )
    shared_bytes = shape.ring * (shape.rows + shape.columns) * ROW_BYTES
    return Kernel(
        "experts/product.cu", "expert_product", defines, 32 * shape.warp_rows * shape.warp_columns, shared_bytes
    )


def production_kernels() -> list[Kernel]:
    pairs = ((torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.float16, torch.float16))
    return [product_kernel(*pair, shape) for pair in pairs for shape in (SMALL, LARGE)]


def _grid(shape: Shape, outputs: int, groups: int, rows_of_group: int) -> tuple[int, int, int]:
    """Blocks for groups of so many rows; a group may have more, which its blocks compute one after another."""
    return -(-outputs // shape.columns), groups, min(-(-rows_of_group // shape.rows), MAX_DEPTH)


def _check(x: Tensor, weight: Tensor, out: Tensor, inputs: int) -> None:
    assert x.dtype == weight.dtype, (x.dtype, weight.dtype)
    assert out.dtype in (x.dtype, torch.float32), out.dtype
    assert out.dtype == torch.float32 or out.shape[-1] % 2 == 0, out.shape
    assert inputs % INPUTS_MULTIPLE == 0, inputs
    assert x.stride(1) == 1, x.stride()
    assert x.stride(0) % INPUTS_MULTIPLE == 0, x.stride()
    assert weight.is_contiguous()
    assert out.is_contiguous()
    assert x.data_ptr() % 16 == weight.data_ptr() % 16 == out.data_ptr() % 4 == 0
