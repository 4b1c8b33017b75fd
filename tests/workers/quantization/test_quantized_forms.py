"""The canonical forms: projections are joined where possible, with equal values."""

import pytest
import torch

from paged_serve.workers.checkpoint.weight_forms import GroupedWeight, Int8Weight, joined, on_device, with_outputs


def random(seed):
    return torch.Generator().manual_seed(seed)


def grouped(seed, bits=4, groups=2, zeros=False, order_seed=None):
    """A grouped weight with 16 outputs and 64 inputs."""
    codes = torch.randint(0, 2**bits, (16, 64), dtype=torch.uint8, generator=random(seed))
    scales = torch.rand(16, groups, generator=random(seed))
    zero_points = torch.randint(0, 2**bits, (16, groups), dtype=torch.uint8, generator=random(seed)) if zeros else None
    order = None if order_seed is None else torch.randperm(64, generator=random(order_seed))
    return GroupedWeight(codes, scales, zero_points, bits, order)


def int8(seed):
    codes = torch.randint(-128, 128, (16, 64), generator=random(seed)).to(torch.int8)
    return Int8Weight(codes, torch.rand(16, generator=random(seed)))


def values(weight):
    return weight if isinstance(weight, torch.Tensor) else weight.dequantized()


FLOAT = torch.randn(16, 64, generator=random(0))


@pytest.mark.parametrize(
    ("parts", "num_matrices"),
    [
        ([FLOAT, FLOAT + 1], 1),
        ([int8(0), int8(1), int8(2)], 1),
        ([grouped(0), grouped(1)], 1),
        ([grouped(0, zeros=True), grouped(1, zeros=True)], 1),
        ([grouped(0, zeros=True), grouped(1)], 1),
        ([grouped(0), grouped(1, zeros=True), grouped(2)], 1),
        ([grouped(0, order_seed=5), grouped(1, order_seed=5)], 1),
        ([grouped(0, order_seed=5), grouped(1, order_seed=6)], 2),
        ([grouped(0, order_seed=5), grouped(1)], 2),
        ([grouped(0), grouped(1, groups=4)], 2),
        ([grouped(0), grouped(1, bits=8)], 2),
        ([int8(0), grouped(1), grouped(2)], 2),
        ([FLOAT, int8(0), FLOAT], 3),
    ],
)
def test_adjacent_projections_of_the_same_form_are_joined(parts, num_matrices):
    found = joined(parts)
    assert len(found) == num_matrices
    assert torch.equal(torch.cat([values(weight) for weight in found]), torch.cat([values(part) for part in parts]))


@pytest.mark.parametrize("weight", [FLOAT, int8(0), grouped(0), grouped(0, zeros=True, order_seed=5)])
def test_padding_outputs_are_zero_and_the_others_unchanged(weight):
    padded = values(with_outputs(weight, 24))
    assert torch.equal(padded[:16], values(weight))
    assert not padded[16:].any()
    assert with_outputs(weight, 16) is weight
    assert torch.equal(values(on_device(weight, "cpu")), values(weight))
