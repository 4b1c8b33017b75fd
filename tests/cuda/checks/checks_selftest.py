"""The definitions of all primitives of device.cuh in numpy, independent of the emulator."""

import numpy as np
import torch

from paged_serve.workers.kernels.cuda.selftest import PRIMITIVES, THREADS, agree, cases, run

from ..small_floats import E4M3, FORMATS

TOGETHER = PRIMITIVES[PRIMITIVES.index("copy_async16") :]  # primitives in which threads cooperate


def widened(case, threads):
    codes = threads.view(torch.uint8).numpy()
    values = np.where(codes & 0x80, -1.0, 1.0) * E4M3.values[codes & 0x7F]
    return rounded(values, FORMATS[selftest_dtype(case)], selftest_dtype(case))


def rounded(x, to, dtype):
    integer = torch.uint8 if to is E4M3 else torch.uint16
    codes = np.where(
        np.isnan(x), to.largest + (1 if to is E4M3 else 2), to.nearest(np.nan_to_num(x, posinf=np.inf, neginf=-np.inf))
    )
    return torch.from_numpy(codes).to(integer).view(dtype)


def selftest_dtype(case):
    return torch.bfloat16 if ("SCALAR", "bf16") in case.kernel.defines else torch.float16


def narrowed(case, pairs):
    return rounded(pairs.double().numpy(), E4M3, torch.float8_e4m3fn)


def packed(case, floats):
    return rounded(floats.double().numpy(), FORMATS[selftest_dtype(case)], selftest_dtype(case))


def as_floats(case, codes):
    layout, bits = FORMATS[codes.dtype], codes.view(torch.uint16).numpy().astype(np.int64)
    magnitude = bits & 0x7FFF
    finite = np.where(magnitude <= layout.largest, layout.values[np.minimum(magnitude, layout.largest)], np.inf)
    values = np.where(magnitude > layout.largest + 1, np.nan, np.where(bits >> 15, -finite, finite))
    return torch.from_numpy(values).float()


def copied(case, data, valid):
    halves = data.view(-1, 2, 16) * valid.to(torch.uint8).unsqueeze(2)
    blocks = halves.view(-1, THREADS, 2, 16)
    return torch.stack((blocks[:, :, 0], blocks[:, :, 1].roll(-1, 1)), 2).reshape(len(data), 32)


def loaded(case, rows):
    """Four 8x8 matrices per warp: lane l has the elements (l / 4, 2 (l % 4)) of each and the next one."""
    matrices = rows.view(-1, 4, 8, 8)
    if case.primitive == "load_matrices_transposed":
        matrices = matrices.transpose(2, 3)
    return matrices.reshape(-1, 4, 32, 2).transpose(1, 2).reshape(-1, 8)


def product(case, a, b, c):
    """a in quarters: [rows 0-7, columns 0-7], [8-15, 0-7], [0-7, 8-15], [8-15, 8-15]; b in halves: rows 0-7, 8-15."""
    quarters = a.double().view(-1, 8, 4, 4, 2).permute(0, 3, 1, 2, 4).reshape(-1, 2, 2, 8, 8)
    left = quarters.permute(0, 2, 3, 1, 4).reshape(-1, 16, 16)
    right = b.double().view(-1, 8, 4, 2, 2).permute(0, 3, 2, 4, 1).reshape(-1, 16, 8)
    start = c.double().view(-1, 8, 4, 2, 2).permute(0, 3, 1, 2, 4).reshape(-1, 16, 8)
    total = start + left @ right
    return total.view(-1, 2, 8, 4, 2).permute(0, 2, 3, 1, 4).reshape(-1, 4).float()


def reduced(case, lanes):
    x = lanes.numpy().reshape(-1, 32)
    distances = {"quad": (1, 2), "warp": (16, 8, 4, 2, 1), "block": (16, 8, 4, 2, 1)}
    width, what = case.primitive.split("_")
    for distance in distances[width]:
        other = x[:, np.arange(32) ^ distance]
        x = np.maximum(x, other) if what == "max" else x + other
    if width == "block":
        totals = x.reshape(-1, THREADS // 32, 32)
        total = totals[:, 0]
        for warp in range(1, THREADS // 32):
            total = total + totals[:, warp]
        x = np.repeat(total[:, None], THREADS // 32, 1)
    return torch.from_numpy(x.reshape(-1, 1).copy())


DEFINITIONS = {
    "widen2": widened,
    "narrow2": narrowed,
    "pack2": packed,
    "from_float": packed,
    "to_float": as_floats,
    "exp2_approx": lambda case, x: x.double().exp2().float(),
    "reciprocal_approx": lambda case, x: x.double().reciprocal().float(),
    "tanh_approx": lambda case, x: x.double().tanh().float(),
    "copy_async16": copied,
    "load_matrices": loaded,
    "load_matrices_transposed": loaded,
    "multiply_add": product,
    **dict.fromkeys(("quad_max", "quad_sum", "warp_max", "warp_sum", "block_sum"), reduced),
}


def check_case(launcher, case, device="cpu"):
    expected = DEFINITIONS[case.primitive](case, *case.inputs)
    found = run(launcher, case, device)
    assert found.shape == expected.shape
    assert agree(case, found, expected), case.name


def check_selftest(launcher, device="cpu"):
    for case in cases():
        check_case(launcher, case, device)
