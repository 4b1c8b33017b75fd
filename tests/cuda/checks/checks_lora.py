"""Checks of the kernels of LoRA adapters, each for one case on any launcher: against float64, and to the bit."""

import torch

from paged_serve.workers.kernels.cuda.lora import lora_expand, lora_look_up, lora_shrink

from ...workers.lora_case import LoraCase, table_of
from ...workers.portable_numbers import assert_same_bits

BF16, FP16 = torch.bfloat16, torch.float16
ROWS = 37


def added(launcher, case, places, rows=None, shares=1, unused=0):
    """The results of `rows` (None: all) of the case, whose grid has `unused` blocks more than there are groups."""
    rows = list(range(len(case.y))) if rows is None else rows
    deltas, own = case.deltas(), [places[row] for row in rows]
    groups = table_of(own, case.device)
    groups = table_of(own, case.device, groups.most + unused)
    y, sums = case.y[rows].clone(), torch.full((shares, len(rows), deltas.width), torch.nan, device=case.device)
    for share in range(shares):
        if case.is_table:
            lora_look_up(launcher, deltas, groups, case.ids[rows], sums[share])
        else:
            part = case.deltas(share=share, shares=shares)
            lora_shrink(launcher, part, groups, case.x_share(rows, share, shares), sums[share])
    lora_expand(launcher, deltas, groups, sums, y)
    return y.cpu()


def check_case(launcher, case, shares=1):
    places = [row * 7 % (len(case.ranks) + 1) for row in range(len(case.y))]
    found = added(launcher, case, places, shares=shares, unused=3)
    torch.testing.assert_close(found.double(), case.exact(places), rtol=case.tolerance, atol=case.tolerance)
    without = [row for row, place in enumerate(places) if place == 0]
    assert_same_bits(found[without], case.y.cpu()[without])
    for row in (1, len(places) - 1):
        assert_same_bits(added(launcher, case, places, [row], shares), found[row : row + 1])


def check_lora(launcher, device="cpu"):
    """All checks in small cases, which must detect a bug planted anywhere."""
    check_case(launcher, LoraCase(264, (130, 70, 128), (5, 16), BF16, ROWS, device=device))
    check_case(launcher, LoraCase(64, (200,), (3,), BF16, ROWS, device=device), shares=2)
    check_case(launcher, LoraCase(48, (72,), (9, 2), BF16, ROWS, is_table=True, device=device))
    case = LoraCase(64, (70,), (4,), BF16, ROWS, device=device)
    case.y = case.y.float()
    case.tolerance = 2**-14
    check_case(launcher, case)
