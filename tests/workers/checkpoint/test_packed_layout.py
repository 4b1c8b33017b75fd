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
DIGESTS_OF = 6  # the LAYOUT of these digests
DIGESTS = {
    "bfloat16": "1052e24384eb79c1",
    "bfloat16 of an odd number of inputs": "c4d1039429f6281a",
    "float16": "095ac65951144de9",
    "float32": "81eff65070765c56",
    "two parts": "1052e24384eb79c1",
    "int8": "c4e90d9b97324706",
    "int4": "2641438cfa4873bd",
    "int4 with zero points": "ffee998f50371042",
    "int4, a rank's share of a group": "066658ba2e4e9a8e",
    "int8 on load": "6685ff1131792711",
    "int4 on load": "6c12c88f529cf90a",
    "fp8": "a6524a2569c6c141",
    "fp8 in blocks": "5deaf5f9438bf085",
    "Q8_0": "4b4c798a56eeb0cc",
    "Q4_0": "36c7021eb49c6ec3",
    "Q4_1": "cc2e744dd9472bf3",
    "Q5_0": "75477c3fa5d34857",
    "Q5_1": "3ae9740d4effd02a",
    "IQ4_NL": "240d7250d100b6f0",
    "IQ4_XS": "89362e74de6c425e",
    "Q2_K": "5ac34af69734f6ed",
    "Q3_K": "6eba859836728ec3",
    "Q4_K": "ab62eb4236220c17",
    "Q5_K": "7937fc875df6509d",
    "Q6_K": "d8dd80113a190646",
    "IQ2_XXS": "545e3af254196f0f",
    "IQ2_XS": "05ff5ee453181819",
    "IQ2_S": "411eba6bfd31cc04",
    "IQ3_XXS": "7af4f294884cc794",
    "IQ3_S": "8429ad85d04ad1a0",
    "IQ1_S": "ce0d0d9283b6cb46",
    "IQ1_M": "2b804981f6b8e37a",
    "TQ1_0": "e1eee53069cddd75",
    "TQ2_0": "a7b443acff1977b8",
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
    "int8 on load": lambda pool: int8_from_floats(pool, floats(), slice(None))[0],
    "int4 on load": lambda pool: int4_from_floats(pool, floats(), GROUP)[0],
    "fp8": lambda pool: Fp8Weight(fp8_codes(), normals((OUTPUTS,), 7).abs()),
    "fp8 in blocks": lambda pool: Fp8BlockWeight(fp8_codes(), normals((OUTPUTS, INPUTS // GROUP), 8).abs(), "fp8"),
    **{name: partial(blocks_of, name) for name in PRODUCT_FORMATS},
}


def digest_of(weight):
    """The digest of everything that a file stores of a weight."""
    scales = b"" if weight.scales is None else weight.scales.numpy().tobytes()
    rest = (weight.format, weight.data.dtype, *weight.data.shape, weight.group_size, weight.scale_unit)
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
