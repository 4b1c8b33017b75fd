"""Runs every primitive of device.cuh on a device or in the emulator; the results must agree.

Tests of kernels in the emulator hold for a device only if the primitives are the same on both.
"""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from .kernel import SCALARS, Kernel, Launcher

THREADS = 128
BF16, FP16, FP8, FLOAT = torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float32
PRIMITIVES = (  # the order of selftest.cu's enum
    *("widen2", "narrow2", "pack2", "from_float", "to_float", "exp2_approx", "reciprocal_approx"),
    *("tanh_approx", "copy_async16", "load_matrices", "load_matrices_transposed", "multiply_add"),
    *("quad_max", "quad_sum", "warp_max", "warp_sum", "block_sum"),
)
OUTPUTS = {"widen2": 2, "narrow2": 2, "pack2": 2, "load_matrices": 8, "load_matrices_transposed": 8, "multiply_add": 4}


class SelftestParams(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("out", "a", "b", "c")),
        *((name, ctypes.c_int32) for name in ("primitive", "count")),
    )


class Case(NamedTuple):
    """Inputs of one primitive, the first word of `name`. Each of `inputs` is [threads, elements of one thread].

    `tolerance` is the relative tolerance of each element; 0 requires equal bits, except that all NaN are equal.
    """

    name: str
    kernel: Kernel
    inputs: tuple[Tensor, ...]
    tolerance: float

    @property
    def primitive(self) -> str:
        return self.name.split()[0]


def selftest_kernel(dtype: torch.dtype) -> Kernel:
    return Kernel("selftest.cu", "selftest", (("SCALAR", SCALARS[dtype]),), THREADS, shared_bytes=THREADS * 32)


def production_kernels() -> list[Kernel]:
    return [selftest_kernel(BF16), selftest_kernel(FP16)]


def run(launcher: Launcher, case: Case, device: str = "cpu") -> Tensor:
    """The primitive's results on the CPU, [threads, elements of one thread] in its own dtype."""
    inputs = [tensor.contiguous().to(device) for tensor in case.inputs]
    count = len(inputs[0])
    out = torch.zeros((count, _outputs(case)), dtype=_output_dtype(case), device=device)
    pointers = [tensor.data_ptr() for tensor in inputs] + [None] * (3 - len(inputs))
    params = SelftestParams(out.data_ptr(), *pointers, PRIMITIVES.index(case.primitive), count)
    launcher.launch(case.kernel, (-(-count // THREADS), 1, 1), params)
    return out.cpu()


def agree(case: Case, found: Tensor, expected: Tensor) -> bool:
    """Whether two runs, or a run and a definition, have the same results within the tolerance."""
    if found.dtype == torch.uint8:
        return torch.equal(found, expected)
    both_nan = found.isnan() & expected.isnan()
    if case.tolerance == 0:
        integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[found.dtype.itemsize]
        same = found.view(integer) == expected.view(integer)
    else:
        same = (found == expected) | ((found - expected).abs() <= case.tolerance * expected.abs())
    return bool((same | both_nan).all())


def cases() -> list[Case]:
    """Cases of all primitives, for both 16-bit dtypes if they differ; conversions of every code and halfway point."""
    random = torch.Generator().manual_seed(0)
    found = []
    for dtype in (BF16, FP16):
        name, kernel = SCALARS[dtype], selftest_kernel(dtype)
        around = _around_halfway(dtype)
        found += [
            Case(f"widen2 {name}", kernel, (_every_pair_of_codes(),), 0.0),
            Case(f"pack2 {name}", kernel, (torch.stack((around, around.flip(0)), 1),), 0.0),
            Case(f"from_float {name}", kernel, (around.unsqueeze(1),), 0.0),
            Case(f"to_float {name}", kernel, (_codes(dtype).unsqueeze(1),), 0.0),
            Case(f"multiply_add {name}", kernel, _matrices(random, dtype), 2.0**-18),
            Case(f"multiply_add {name} of whole numbers", kernel, _whole_matrices(random, dtype), 0.0),
        ]
    kernel = selftest_kernel(BF16)
    narrowed = torch.cat((_codes(BF16).float(), _around_halfway(FP8)))
    rows = torch.randint(-(2**15), 2**15, (2 * THREADS, 8), generator=random).to(torch.int16)
    lanes = torch.randn((4 * THREADS, 1), generator=random)
    found += [
        Case("narrow2", kernel, (torch.stack((narrowed, narrowed.flip(0)), 1),), 0.0),
        Case("exp2_approx", kernel, (_exponents(random),), 2.0**-21),
        Case("reciprocal_approx", kernel, (_divisors(random),), 2.0**-22),
        Case("tanh_approx", kernel, (8 * torch.randn((4096, 1), generator=random),), 2.0**-10),
        Case("copy_async16", kernel, _copies(random), 0.0),
        Case("load_matrices", kernel, (rows,), 0.0),
        Case("load_matrices_transposed", kernel, (rows,), 0.0),
    ]
    reductions = ("quad_max", "quad_sum", "warp_max", "warp_sum", "block_sum")
    return [*found, *(Case(name, kernel, (lanes,), 0.0) for name in reductions)]


def _outputs(case: Case) -> int:
    return case.inputs[0].shape[1] if case.primitive == "copy_async16" else OUTPUTS.get(case.primitive, 1)


def _output_dtype(case: Case) -> torch.dtype:
    match case.primitive:
        case "narrow2":
            return FP8
        case "copy_async16":
            return torch.uint8
        case "load_matrices" | "load_matrices_transposed":
            return torch.int16
        case "widen2" | "pack2" | "from_float":
            return BF16 if ("SCALAR", "bf16") in case.kernel.defines else FP16
        case _:
            return FLOAT


def _codes(dtype: torch.dtype) -> Tensor:
    """Every value of a dtype, including NaN and infinities."""
    if dtype == FP8:
        return torch.arange(256).to(torch.uint8).view(FP8)
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)


def _every_pair_of_codes() -> Tensor:
    """Each e4m3 code in both places, [threads, 2]; without NaN, which is a number before sm_89."""
    codes = torch.cat([torch.arange(start, start + 127) for start in (0, 128)]).to(torch.uint8)
    return torch.stack((codes, codes.roll(1)), 1).view(FP8)


def _around_halfway(dtype: torch.dtype) -> Tensor:
    """Every value of a dtype as float, the points halfway between adjacent values, and the floats next to these."""
    codes = _codes(dtype).float()
    values = codes[codes.isfinite()].sort().values
    halfway = (values[1:] + values[:-1]) / 2
    beyond = values[-1] * 1.5
    infinity = torch.tensor(torch.inf)
    near = torch.cat((halfway.nextafter(infinity), halfway.nextafter(-infinity), beyond.view(1), -beyond.view(1)))
    return torch.cat((codes, halfway, near))


def _exponents(random: torch.Generator) -> Tensor:
    special = torch.tensor([0.0, -0.0, 1.0, -126.0, 127.0, 300.0, -1e30, torch.inf, -torch.inf, torch.nan])
    return torch.cat((special, torch.rand(4096, generator=random) * 253 - 126)).unsqueeze(1)


def _divisors(random: torch.Generator) -> Tensor:
    """Numbers whose reciprocals are normal, 0 or infinite: subnormal reciprocals are 0 on a device."""
    special = torch.tensor([0.0, -0.0, 1.0, -3.0, 2.0**-126, 2.0**125, torch.inf, -torch.inf, torch.nan])
    magnitudes = (torch.rand(4096, generator=random) * 250 - 125).exp2()
    signs = torch.where(torch.rand(4096, generator=random) < 0.5, -1.0, 1.0)
    return torch.cat((special, magnitudes * signs)).unsqueeze(1)


def _copies(random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Bytes to copy, and whether each of a thread's two copies is valid."""
    data = torch.randint(256, (2 * THREADS, 32), generator=random).to(torch.uint8)
    return data, torch.randint(2, (2 * THREADS, 2), generator=random).to(torch.int32)


def _matrices(random: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Random fragments of a, b and sum; all products have the sign of their sum, so that nothing cancels.

    The parts of a and of the sum in lane l belong to the same rows, l / 4 and l / 4 + 8; b is positive.
    """
    lanes = torch.arange(2 * THREADS)
    signs = torch.where(torch.rand((2 * THREADS // 4), generator=random) < 0.5, -1.0, 1.0)[lanes // 4].unsqueeze(1)
    a, b, c = (torch.rand((2 * THREADS, n), generator=random) + 0.01 for n in (8, 4, 4))
    return (a * signs).to(dtype), b.to(dtype), c * 8 * signs


def _whole_matrices(random: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Fragments whose sums are exact in any order."""
    a, b, c = (torch.randint(-16, 17, (2 * THREADS, n), generator=random) for n in (8, 4, 4))
    return a.to(dtype), b.to(dtype), c.float()
