"""The bytes in files of packed weights, for each form: a change of the bytes requires a new LAYOUT.

Files outlive the program that wrote them; LAYOUT is the part of their key that stands for the packing code. To change
the bytes, raise LAYOUT in workers/kernels/cpu/packing.py and replace the digests here by those that the test prints.
"""

import hashlib
from functools import partial

import pytest
import torch

from paged_serve.protocol.gguf.block_formats import BLOCK_FORMATS
from paged_serve.workers.backends.cpu.backend import CpuBackend
from paged_serve.workers.checkpoint.blocks.block_weight import PRODUCT_FORMATS, BlockWeight
from paged_serve.workers.checkpoint.weight_forms import (
    Fp8BlockWeight,
    Fp8Weight,
    GroupedWeight,
    Int8Weight,
    StoredWeight,
)
from paged_serve.workers.kernels.cpu.loading import int4_from_floats, int8_from_floats
from paged_serve.workers.kernels.cpu.packing import LAYOUT

from ..portable_numbers import integers, normals

OUTPUTS, INPUTS, GROUP = 70, 96, 32  # more than one panel, the last one not whole
DIGESTS_OF = 7  # the LAYOUT of these digests
DIGESTS = {
    "bfloat16": "77656ed57fb3c59f",
    "bfloat16 of an odd number of inputs": "e38fbfec405b9ecb",
    "float16": "e103749c76c8a295",
    "float32": "b01aec5e2674596d",
    "two parts": "77656ed57fb3c59f",
    "int8": "2eab26f9da8ef52e",
    "int4": "de8b9896c86aca15",
    "int4 with zero points": "a9a00b5e71b18ad3",
    "int4, a rank's share of a group": "3bacefb66baab69e",
    "nvfp4": "8bafbd01345d00da",
    "int8 on load": "c526c7476ad614ec",
    "int4 on load": "b4a7f1f2418483c5",
    "fp8": "7d9d02623a754300",
    "fp8 in blocks": "bdd8859b384504fe",
    "Q8_0": "66bfa5bc8fbae0e4",
    "Q4_0": "4df2f71105da7162",
    "Q4_1": "6ce9fd6c9b1048b9",
    "Q5_0": "4cd9ec6c0cc6df3b",
    "Q5_1": "e27d7f859c7cb146",
    "IQ4_NL": "0b597f902f579d66",
    "IQ4_XS": "32d8a511d9ee3642",
    "Q2_K": "a9d9f353c1f32ad4",
    "Q3_K": "d349613d43e2fc57",
    "Q4_K": "183adda96372e625",
    "Q5_K": "d5fb5254a6de3fd4",
    "Q6_K": "90946b512d49b27d",
    "IQ2_XXS": "60ac4ec4c6ba419d",
    "IQ2_XS": "439259cb09ad3ca5",
    "IQ2_S": "adb9de65651ca910",
    "IQ3_XXS": "bb8b8993dc7026a3",
    "IQ3_S": "e7c5b4b4501c0fe0",
    "IQ1_S": "6d2511b211b7e35d",
    "IQ1_M": "a69f5b3211fe7441",
    "TQ1_0": "f037f854a0c14a70",
    "TQ2_0": "1881a3ae9e40e47e",
}


def floats():
    return normals((OUTPUTS, INPUTS), 1)


def grouped(zeros, groups=INPUTS // GROUP):
    codes = integers(0, 16, (OUTPUTS, INPUTS), 2).byte()
    scales = normals((OUTPUTS, groups), 3).half().float()
    points = integers(0, 16, (OUTPUTS, groups), 4).byte() if zeros else None
    return GroupedWeight(codes, scales, points, bits=4)


def fp8_codes():
    return integers(0, 127, (OUTPUTS, INPUTS), 9).byte().view(torch.float8_e4m3fn)


def blocks_of(name, pool):
    """Two blocks of each output, of bits that are no scale that is not finite."""
    stored = next(each for each in BLOCK_FORMATS.values() if each.name == name)
    blocks = integers(0, 0x7C, (OUTPUTS, 2, stored.num_bytes), 10).byte()
    return BlockWeight(name, (blocks,), 2 * stored.num_elements, 0, torch.bfloat16)


def nvfp4():
    units = normals((OUTPUTS,), 11).abs()
    scales = integers(1, 127, (OUTPUTS, INPUTS // 16), 12).byte().view(torch.float8_e4m3fn).float() * units.unsqueeze(1)
    return GroupedWeight(grouped(zeros=False).codes, scales, None, bits=4, is_e2m1=True, units=units)


SHARED_BY_TWO = "int4, a rank's share of a group"
FORMS = {
    "bfloat16": lambda pool: StoredWeight((floats(),), torch.bfloat16),
    "bfloat16 of an odd number of inputs": lambda pool: StoredWeight((floats()[:, :95],), torch.bfloat16),
    "float16": lambda pool: StoredWeight((floats(),), torch.float16),
    "float32": lambda pool: StoredWeight((floats(),), torch.float32),
    "two parts": lambda pool: StoredWeight((floats()[:30].bfloat16(), floats()[30:]), torch.bfloat16),
    "int8": lambda pool: Int8Weight(
        integers(-127, 128, (OUTPUTS, INPUTS), 5).to(torch.int8), normals((OUTPUTS,), 6).abs()
    ),
    "int4": lambda pool: grouped(zeros=False),
    "int4 with zero points": lambda pool: grouped(zeros=True),
    SHARED_BY_TWO: lambda pool: grouped(zeros=True, groups=1),
    "nvfp4": lambda pool: nvfp4(),
    "int8 on load": lambda pool: int8_from_floats(pool, floats(), slice(None))[0],
    "int4 on load": lambda pool: int4_from_floats(pool, floats(), GROUP)[0],
    "fp8": lambda pool: Fp8Weight(fp8_codes(), normals((OUTPUTS,), 7).abs()),
    "fp8 in blocks": lambda pool: Fp8BlockWeight(fp8_codes(), normals((OUTPUTS, INPUTS // GROUP), 8).abs(), "fp8"),
    **{name: partial(blocks_of, name) for name in PRODUCT_FORMATS},
}


def digest_of(weight):
    """The digest of everything that a file stores of a weight."""
    scales = b"" if weight.scales is None else weight.scales.numpy().tobytes()
    rest = (weight.format, weight.data.dtype, *weight.data.shape, weight.group_size)
    data = weight.data.contiguous().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data + scales + repr((*map(str, rest), weight.has_zeros)).encode()).hexdigest()[:16]


def test_packed_bytes_change_with_the_layout_alone(cpu_pools):
    pool, backend, found = cpu_pools[0], CpuBackend(cpu_pools[0]), {}
    for form, make in FORMS.items():
        found[form] = digest_of(backend.packed(make(pool), num_ranks=2 if form == SHARED_BY_TWO else None))
    if LAYOUT != DIGESTS_OF:
        pytest.fail(f"LAYOUT is {LAYOUT}: set DIGESTS_OF to it, and DIGESTS to {found}")
    changed = [form for form in found if found[form] != DIGESTS.get(form)]
    assert not changed, f"the bytes have changed, but LAYOUT has not: raise LAYOUT; the digests are now {found}"
