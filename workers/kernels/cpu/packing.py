"""Packs weights in the order in which kernels read them: panels of 64 outputs, K innermost (csrc/cpu/tiles/tile.h)."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from ...checkpoint.packed_weight import PackedWeight as PackedWeight
from ...checkpoint.packed_weight import WeightFormat as WeightFormat
from ...checkpoint.weight_forms import GroupedWeight, Int8Weight, Weight
from ...distributed.huge_pages import allocate

PANEL = 64  # outputs per panel
WORD_INPUTS = 4  # the largest number of inputs of an output in a 32-bit word (int8 codes)
FP16_OUTPUTS = 16  # outputs whose float16 words are unpacked together
OCTET = 8  # inputs of an output in a 32-bit word of int4 codes
LAYOUT = 7  # raised whenever the bytes of panels or the tensors of a file change (test_packed_layout.py)
PANELS_AT_ONCE = 16  # panels whose int4 codes are rearranged together: a few MB of temporaries


def pack(weight: Weight) -> PackedWeight:
    """Pack a weight [outputs, inputs] in its own form and dtype."""
    match weight:
        case Int8Weight():
            return pack_int8(weight.codes, weight.scales)
        case GroupedWeight():
            assert weight.bits == 4
            packed = pack_int4(weight.codes, weight.scales, weight.zeros, weight.order, weight.units)
            return replace(packed, format=grouped_format(weight))
        case _:
            assert isinstance(weight, Tensor), f"no product supports {type(weight).__name__}"
            return pack_float(weight)


def grouped_format(weight: GroupedWeight) -> WeightFormat:
    """The format of a weight in groups of 4-bit codes."""
    return WeightFormat.MXFP4 if weight.is_e2m1 else WeightFormat.INT4


def pack_float(weight: Tensor) -> PackedWeight:
    match weight.dtype:
        case torch.bfloat16:
            return PackedWeight(WeightFormat.BF16, pack_words(weight, 2), *weight.shape)
        case torch.float16:
            return PackedWeight(WeightFormat.FP16, pack_fp16(weight), *weight.shape)
        case torch.float32:
            return PackedWeight(WeightFormat.FP32, pack_words(weight, 1), *weight.shape)
        case _:
            raise TypeError(f"no packed form for {weight.dtype}; convert it to bfloat16, float16 or float32 first")


def pack_fp16(weight: Tensor) -> Tensor:
    """Pack [outputs, inputs] float16 as [panels, words, 64] i32: in 16 words, first the odd inputs, then the even."""
    packed = pack_words(weight, 2)
    for first in range(0, len(packed), PANELS_AT_ONCE):
        words = packed[first : first + PANELS_AT_ONCE].view(torch.int16).view(-1, FP16_OUTPUTS, 2)
        words.view(-1, 2, FP16_OUTPUTS).copy_(torch.stack((words[..., 1], words[..., 0]), 1))
    return packed


def pack_int8(codes: Tensor, scales: Tensor) -> PackedWeight:
    """Pack int8 `codes` [outputs, inputs], whose values are codes * scales; `scales` [outputs] float32."""
    assert codes.dtype == torch.int8
    data = pack_words(codes, 4)
    data.view(torch.uint8).bitwise_xor_(128)  # the kernel's codes are unsigned: code + 128
    outputs, inputs = codes.shape
    return PackedWeight(WeightFormat.INT8, data, outputs, inputs, scales.float().contiguous())


def pack_words(weight: Tensor, per_word: int) -> Tensor:
    """Pack [outputs, inputs] with `per_word` elements per 32 bits as [panels, words, 64] i32."""
    outputs, inputs = weight.shape
    if inputs % per_word:
        weight = functional.pad(weight, (0, -inputs % per_word))
    words = weight.contiguous().view(torch.int32)  # [outputs, words]
    packed = allocate((-(-outputs // PANEL), words.shape[1], PANEL), torch.int32)
    copy_panels(packed, words)
    return packed


def copy_panels(packed: Tensor, rows: Tensor) -> None:
    """Copy `rows` [outputs, ...] to the columns of `packed` [panels, ..., 64], with zeros past the last output."""
    whole, rest = divmod(len(rows), PANEL)
    packed[:whole] = rows[: whole * PANEL].view(whole, PANEL, *rows.shape[1:]).movedim(1, -1)
    if rest:
        packed[whole].zero_()
        packed[whole, ..., :rest] = rows[whole * PANEL :].movedim(0, -1)


def pack_int4(
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    order: Tensor | None = None,
    units: Tensor | None = None,
) -> PackedWeight:
    """Pack uint8 `codes` [outputs, inputs] in 0..15, whose values are (codes - zeros) * scales, group by group.

    `scales` [outputs, groups] float; `zeros` [outputs, groups] uint8, or None: 8 everywhere; `order` as in
    PackedWeight; `units` as in GroupedWeight. Groups have equal size, a multiple of 8. Scales keep 11 significant bits
    in their units, which loses nothing of float16 and bfloat16 scales.
    """
    outputs, inputs = codes.shape
    groups = scales.shape[1]
    group_size = inputs // groups
    if inputs % groups or group_size % OCTET:
        raise ValueError(f"{inputs} inputs in {groups} groups: int4 needs groups whose size is a multiple of {OCTET}")
    units = units_of(scales, units)
    stored = scales_in_units(scales, units)
    header = PANEL * (2 if zeros is None else 3)  # bytes before the codes of a group
    shape = (-(-outputs // PANEL), groups, header + PANEL * group_size // 2)
    data = allocate(shape, torch.uint8)
    for panel in range(0, shape[0], PANELS_AT_ONCE):
        part, at = data[panel : panel + PANELS_AT_ONCE], slice(panel * PANEL, (panel + PANELS_AT_ONCE) * PANEL)
        copy_panels(part[:, :, : PANEL * 2].view(torch.float16), stored[at])
        if zeros is not None:
            copy_panels(part[:, :, PANEL * 2 : header], zeros[at])
        octets = part[:, :, header:].view(torch.int32).view(len(part), groups, -1, PANEL)
        copy_panels(octets, octet_words(codes[at]).view(-1, groups, group_size // OCTET))
    rest = panel_units(units), group_size, zeros is not None, order
    return PackedWeight(WeightFormat.INT4, data, outputs, inputs, *rest)


def units_of(scales: Tensor, units: Tensor | None) -> Tensor:
    """The units of `scales` [outputs, groups]: `units` [outputs] if there are any, or else one for all outputs."""
    return torch.full((len(scales),), scale_unit(scales)) if units is None else torch.where(units == 0, 1.0, units)


def scales_in_units(scales: Tensor, units: Tensor) -> Tensor:
    return (scales.float() / units.unsqueeze(1)).half().contiguous()


def panel_units(units: Tensor) -> Tensor:
    """The units [outputs] as [panels, 64]."""
    panels = torch.empty(-(-len(units) // PANEL), PANEL)
    copy_panels(panels, units)
    return panels


def scale_unit(scales: Tensor) -> float:
    """The power of two in units of which the largest scale is just below 2^15, so that float16 keeps all its bits."""
    largest = float(scales.abs().max())
    return 2.0 ** (torch.frexp(torch.tensor(largest)).exponent.item() - 15) if largest else 1.0


def octet_words(codes: Tensor) -> Tensor:
    """Pack [outputs, inputs] of 0..15 as [outputs, inputs / 8] i32, in the order of nibbles of gemm/int4/int4.cpp."""
    octets = codes.view(len(codes), -1, OCTET)
    low, high = octets[:, :, [0, 4, 1, 5]], octets[:, :, [2, 6, 3, 7]]
    return (low | (high << 4)).contiguous().view(torch.int32).squeeze(2)
