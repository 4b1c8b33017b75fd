"""Products of rows sorted by expert, each expert's with its own weight, and of rows in segments of their inputs."""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from ....checkpoint.stacked_experts import padded_outputs
from ..kernel import SCALARS, Kernel, Launcher, pointer
from .coded_weight import CHUNK_INPUTS, TILE_INPUTS, CodedWeight
from .routing import Places

INPUTS_MULTIPLE = 8  # of a group: copies of 16 bytes
MAX_DEPTH = 65535  # of a grid


class ExpertProductParams(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("out", "x", "weight", "scales", "zeros", "bias", "sources", "starts")),
        *((name, ctypes.c_int64) for name in ("x_stride", "weight_stride", "x_group", "weight_group", "out_group")),
        *((name, ctypes.c_int64) for name in ("out_stride", "scales_stride")),
        *((name, ctypes.c_int) for name in ("rows", "inputs", "outputs", "scaled")),
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
CODED_BLOCKS = 4  # of a multiprocessor; otherwise the compiler spills registers
CODED_RING = 8  # of small tiles: their codes are a quarter of the bytes
ROW_BYTES = (TILE_INPUTS // 8 | 1) * 16  # of shared memory


class Form(NamedTuple):
    """The form of a weight: numbers, or codes."""

    codes: str = ""  # INT4 or E2M1
    scales: int = 1  # of each row, in TILE_INPUTS inputs
    has_zeros: bool = False

    @classmethod
    def of(cls, weight: Tensor | CodedWeight) -> "Form":
        if isinstance(weight, Tensor):
            return FLOATS
        return cls("E2M1" if weight.is_e2m1 else "INT4", weight.scales_of_tile, weight.zeros is not None)

    def bytes_of(self, columns: int) -> int:
        """Of a stage's weights in shared memory."""
        if not self.codes:
            return columns * ROW_BYTES
        return columns * (TILE_INPUTS // 2 + self.scales * (4 + self.has_zeros))


FLOATS = Form()


def expert_product(
    launcher: Launcher,
    x: Tensor,
    weight: Tensor | CodedWeight,
    bias: Tensor | None,
    places: Places,
    out: Tensor,
    *,
    gathers: bool = False,
) -> Tensor:
    """Set `out` [places, outputs] to the product of each place's row of `x` and its expert's part of `weight`.

    `weight` is a stacked_experts() of this rank's experts [experts * padded outputs, inputs], in numbers or in codes,
    which give the bits of the numbers they stand for. `bias` is [experts, outputs] float32. `x` is [places, inputs] or,
    with `gathers`, [rows, inputs]. `out` has the dtype of `x` or float32; places that are not in use are not written.
    """
    (count, outputs), (rows, inputs), held = out.shape, x.shape, len(places.starts) - 1
    padded = padded_outputs(outputs)
    assert count == len(places.sources), count
    assert rows == (len(places.places) if gathers else count), rows
    assert weight.shape == (held * padded, inputs), (weight.shape, held, padded)
    assert bias is None or (bias.dtype == torch.float32 and bias.shape == (held, outputs) and bias.is_contiguous())
    _check(x, weight, out, inputs)
    pointers = out.data_ptr(), x.data_ptr(), *_pointers(weight), pointer(bias)
    sorted_by = places.sources.data_ptr() if gathers else None, places.starts.data_ptr()
    scales_stride, scaled = _scaling(weight)
    strides = x.stride(0), inputs, 0, padded * inputs, 0, outputs, scales_stride
    shape, form = shape_for(count, held), Form.of(weight)
    if count and held:
        grid = _grid(shape, outputs, held, -(-count // held))
        params = ExpertProductParams(*pointers, *sorted_by, *strides, 0, inputs, outputs, scaled)
        launcher.launch(product_kernel(x.dtype, out.dtype, shape, form), grid, params)
    return out


def coded_product(launcher: Launcher, x: Tensor, weight: CodedWeight, bias: Tensor | None, out: Tensor) -> Tensor:
    """Set `out` [rows, outputs] to the product of `x` [rows, inputs] and `weight`, plus `bias` [outputs] float32."""
    (rows, inputs), outputs = x.shape, out.shape[1]
    assert out.shape == (rows, weight.shape[0]), (out.shape, weight.shape)
    assert inputs == weight.shape[1], (inputs, weight.shape)
    assert bias is None or (bias.dtype == torch.float32 and bias.shape == (outputs,) and bias.is_contiguous())
    _check(x, weight, out, inputs)
    pointers = out.data_ptr(), x.data_ptr(), *_pointers(weight), pointer(bias), None, None
    scales_stride, scaled = _scaling(weight)
    strides = x.stride(0), inputs, 0, 0, 0, outputs, scales_stride
    shape = shape_for(rows, 1)
    if rows:
        params = ExpertProductParams(*pointers, *strides, rows, inputs, outputs, scaled)
        kernel = product_kernel(x.dtype, out.dtype, shape, Form.of(weight))
        launcher.launch(kernel, _grid(shape, outputs, 1, rows), params)
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
    strides = x.stride(0), inputs, part, part, rows * outputs, outputs, 0
    pointers = out.data_ptr(), x.data_ptr(), weight.data_ptr(), *5 * (None,)
    shape = shape_for(rows, 8)
    if rows:
        params = ExpertProductParams(*pointers, *strides, rows, part, outputs, 0)
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
    strides = x.stride(0), inputs, x.stride(1), padded * inputs, out.stride(1), out.stride(0), 0
    pointers = out.data_ptr(), x.data_ptr(), weight.data_ptr(), *5 * (None,)
    shape = shape_for(rows, 8)
    if rows:
        params = ExpertProductParams(*pointers, *strides, rows, inputs, outputs, 0)
        launcher.launch(product_kernel(x.dtype, out.dtype, shape), _grid(shape, outputs, heads, rows), params)
    return out


def shape_for(count: int, held: int) -> Shape:
    """Small tiles if an expert has at most 16 of the `count` places on average."""
    return SMALL if count <= SMALL.rows * held else LARGE


def product_kernel(dtype: torch.dtype, out: torch.dtype, shape: Shape, form: Form = FLOATS) -> Kernel:
    ring = CODED_RING if form.codes and shape is SMALL else shape.ring
    bounds = (("MIN_BLOCKS", CODED_BLOCKS),) if form.codes else ()
    defines: tuple[tuple[str, str | int], ...] = (
        *(("SCALAR", SCALARS[dtype]), ("OUT", SCALARS[out])),
        *(("WARP_ROWS", shape.warp_rows), ("WARP_COLUMNS", shape.warp_columns)),
        *(("ROW_PARTS", shape.row_parts), ("COLUMN_PAIRS", shape.column_pairs), ("RING", ring)),
        *(("WEIGHT", form.codes or "FLOATS"), ("SCALES", form.scales), ("HAS_ZEROS", int(form.has_zeros))),
        *bounds,
    )
    shared_bytes = ring * (shape.rows * ROW_BYTES + form.bytes_of(shape.columns))
    shared_bytes += shape.columns * ROW_BYTES if form.codes else 0  # of expanded codes
    return Kernel(
        "experts/product.cu", "expert_product", defines, 32 * shape.warp_rows * shape.warp_columns, shared_bytes
    )


def production_kernels() -> list[Kernel]:
    pairs = ((torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.float16, torch.float16))
    forms = Form("INT4"), Form("INT4", 2, True), Form("E2M1", 2), Form("E2M1", 4)
    coded = [product_kernel(torch.bfloat16, torch.bfloat16, shape, form) for form in forms for shape in (SMALL, LARGE)]
    return [*(product_kernel(*pair, shape) for pair in pairs for shape in (SMALL, LARGE)), *coded]


def _grid(shape: Shape, outputs: int, groups: int, rows_of_group: int) -> tuple[int, int, int]:
    """Blocks for groups of so many rows; a group may have more, which its blocks compute one after another."""
    return -(-outputs // shape.columns), groups, min(-(-rows_of_group // shape.rows), MAX_DEPTH)


def _pointers(weight: Tensor | CodedWeight) -> tuple[int, int | None, int | None]:
    """Of numbers or codes, scales, and zero points."""
    if isinstance(weight, Tensor):
        return weight.data_ptr(), None, None
    return weight.codes.data_ptr(), weight.scales.data_ptr(), pointer(weight.zeros)


def _scaling(weight: Tensor | CodedWeight) -> tuple[int, int]:
    """Elements from one group's scales to the next one's, and the inputs of a group."""
    return (0, 0) if isinstance(weight, Tensor) else (weight.scales.stride(0), weight.group_size)


def _check(x: Tensor, weight: Tensor | CodedWeight, out: Tensor, inputs: int) -> None:
    if isinstance(weight, CodedWeight):
        assert inputs % CHUNK_INPUTS == 0, inputs
        weight = weight.codes
        assert weight.dtype == torch.uint8, weight.dtype
    else:
        assert x.dtype == weight.dtype, (x.dtype, weight.dtype)
    assert out.dtype in (x.dtype, torch.float32), out.dtype
    assert out.dtype == torch.float32 or out.shape[-1] % 2 == 0, out.shape
    assert inputs % INPUTS_MULTIPLE == 0, inputs
    assert x.stride(1) == 1, x.stride()
    assert x.stride(0) % INPUTS_MULTIPLE == 0, x.stride()
    assert weight.is_contiguous()
    assert out.is_contiguous()
    assert x.data_ptr() % 16 == weight.data_ptr() % 16 == out.data_ptr() % 4 == 0
