"""Each AVX512 intrinsic of csrc/cpu has an emulation, which otherwise only nightly tests without AVX512 need."""

import re

from .build import CSRC, HERE

INTRINSIC = re.compile(r"\b_mm(?:512_|(?:256)?_maskz?_)\w+")


def test_each_intrinsic_has_an_emulation():
    emulated = set(re.findall(r"^#define (_mm\w+)", (HERE / "avx512_vectors.h").read_text(), re.MULTILINE))
    used = {name for file in sorted(CSRC.rglob("*.[hc]*")) for name in INTRINSIC.findall(file.read_text())}
    assert len(used) > 30
    assert not used - emulated
