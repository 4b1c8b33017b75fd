"""The kernel unpacks the same codes as torch, for every layout, share, order and number of threads."""

import pytest
import torch

from paged_serve.workers.kernels.cpu.unpacking import WordLayout, unpack_codes
from paged_serve.workers.quantization.words.bit_fields import codes_of

SIZES = [(8, 8), (24, 40), (136, 72), (200, 264)]  # outputs, inputs: less than a block, and partial blocks


def words_for(layout, bits, outputs, inputs, first):
    """Words of random bits with `first` additional values; a part of a larger matrix."""
    per_word = 32 // bits
    match layout:
        case WordLayout.ALONG_INPUTS:
            shape = outputs, -(-(first + inputs) // per_word)
        case WordLayout.DOWN_INPUTS:
            shape = -(-(first + inputs) // per_word), outputs
        case WordLayout.AWQ:
            shape = inputs, -(-(first + outputs) // per_word)
    generator = torch.Generator().manual_seed(outputs + first)
    wider = torch.randint(-(2**31), 2**31, (shape[0], shape[1] + 3), generator=generator).int()
    return wider[:, 2 : 2 + shape[1]]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("layout", "bits"), [*((layout, 4) for layout in WordLayout), (0, 8), (1, 8)])
def test_codes_match_torch(cpu_pools, layout, bits, size):
    layout = WordLayout(layout)
    orders = [None] if layout == WordLayout.AWQ else [None, torch.randperm(size[1])]
    for first in (0, 1, 5):
        words = words_for(layout, bits, *size, first)
        for order in orders:
            expected = codes_of(None, words, layout, bits, size, first, order)
            assert expected.shape == size
            for pool in cpu_pools:
                assert torch.equal(unpack_codes(pool, words, layout, bits, size, first, order), expected)
