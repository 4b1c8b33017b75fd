"""Weights in the order in which the kernels read them: panels of 64 outputs, K innermost, see csrc/cpu/tile.h."""

import mmap
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor
from torch.nn import functional

PANEL = 64  # outputs of a panel
HUGE_PAGE = 2 << 20


class WeightFormat(StrEnum):
    BF16 = "bf16"
    FP32 = "fp32"


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [outputs, inputs], packed; the original is no longer needed."""

    format: WeightFormat
    data: Tensor  # [panels, words, 64] i32; a word is 2 bfloat16 or 1 float along the inputs, zeros past the edges
    outputs: int
    inputs: int

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor that starts on a 2 MB page and lies in such pages as far as it fills them."""
    nbytes = dtype.itemsize * torch.Size(shape).numel()
    memory = mmap.mmap(-1, nbytes + HUGE_PAGE)
    raw = torch.frombuffer(memory, dtype=torch.uint8)
    start = -raw.data_ptr() % HUGE_PAGE
    if whole := nbytes // HUGE_PAGE * HUGE_PAGE:
        memory.madvise(mmap.MADV_HUGEPAGE, start, whole)
    return raw[start : start + nbytes].view(dtype).view(shape)


def pack(weight: Tensor) -> PackedWeight:
    """Packs a weight [outputs, inputs] in its own dtype, bfloat16 or float32."""
    match weight.dtype:
        case torch.bfloat16:
            return PackedWeight(WeightFormat.BF16, pack_words(weight, 2), *weight.shape)
        case torch.float32:
            return PackedWeight(WeightFormat.FP32, pack_words(weight, 1), *weight.shape)
        case _:
            raise TypeError(f"no packed form for {weight.dtype}; convert it to bfloat16 or float32 first")


def pack_words(weight: Tensor, per_word: int) -> Tensor:
    """[outputs, inputs] of elements that go `per_word` to 32 bits -> [panels, words, 64] i32."""
    outputs, inputs = weight.shape
    if inputs % per_word:
        weight = functional.pad(weight, (0, -inputs % per_word))
    words = weight.contiguous().view(torch.int32)  # [outputs, words]
    packed = allocate((-(-outputs // PANEL), words.shape[1], PANEL), torch.int32)
    whole = outputs // PANEL
    packed[:whole].copy_(words[: whole * PANEL].view(whole, PANEL, words.shape[1]).transpose(1, 2))
    if rest := outputs % PANEL:
        packed[whole].zero_()
        packed[whole, :, :rest] = words[whole * PANEL :].T
    return packed
