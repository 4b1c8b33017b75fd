"""Bugs to plant in the C++ of device.cuh: each must make check_selftest fail.

(file, a text that occurs once, its replacement, the effect)
"""

MUTATIONS = [
    ("device.cuh", "magnitude + 0x7ffff + (", "magnitude + 0x80000 + (", "ties of e4m3 away from zero"),
    ("device.cuh", "magnitude >= 0x43e00000", "magnitude >= 0x43f00000", "448 is not the largest any more"),
    ("device.cuh", "* 512.f + 12582912.f", "* 511.f + 12582912.f", "subnormals of e4m3 too small"),
    ("device.cuh", "magnitude < 0x3c800000", "magnitude < 0x3c000000", "the largest subnormals of e4m3"),
    ("device.cuh", "narrow(low) | narrow(high) << 8", "narrow(high) | narrow(low) << 8", "the two e4m3 swapped"),
    ("device.cuh", "if (magnitude > 0x7f800000) return sign | 0x7f;", "", "NaN becomes 448"),
    ("device.cuh", "emulator::bf16_bits(low) |", "emulator::bf16_bits(high) |", "the high float twice"),
    ("device.cuh", "e4m3_value(two >> 8)", "e4m3_value(two & 0xff)", "the low e4m3 twice"),
    ("device.cuh", "uint32_t(x.bits) << 16", "uint32_t(x.bits & 0xfffe) << 16", "the last bit of bf16 lost"),
    ("device.cuh", "return exp2f(x);", "return expf(x);", "e for 2"),
    ("device.cuh", "return 1.f / x;", "return x;", "no reciprocal"),
    ("device.cuh", "return tanhf(x);", "return x;", "no tanh"),
    (
        "device.cuh",
        "copy_async(shared, global, valid, here)",
        "copy_async(shared, global, true, here)",
        "reads what is not",
    ),
    ("device.cuh", "copy_wait(PENDING)", "copy_wait(PENDING + 1)", "one group too few"),
    (
        "device.cuh",
        "load_matrices(fragment, row, true, here)",
        "load_matrices(fragment, row, false, here)",
        "not rotated",
    ),
    (
        "device.cuh",
        "return to_float(bf16{bits}); }, here",
        "return to_float(fp16{bits}); }, here",
        "bf16 taken for fp16",
    ),
    ("device.cuh", "return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));", "return x;", "half of a quad's maximum"),
    ("device.cuh", "return x + __shfl_xor_sync(ALL_LANES, x, 2);", "return x;", "half of a quad's sum"),
    ("device.cuh", "distance /= 2) x = fmaxf", "distance /= 4) x = fmaxf", "some lanes' maximum"),
    ("device.cuh", "distance /= 2) x += ", "distance /= 4) x += ", "some lanes' sum"),
    ("device.cuh", "int warp = 1; warp < WARPS", "int warp = 2; warp < WARPS", "a warp's sum left out"),
]
