"""Cosines and sines of the rotary table equal the double-precision values rounded once, on every machine."""

import math

import numpy as np
import pytest
import torch

from paged_serve.workers.geometry.rope_scaling import RopeScaling
from paged_serve.workers.layers.rotary import Rotary
from paged_serve.workers.layers.trigonometry import cosine_and_sine

from ..portable_numbers import integers


@pytest.mark.parametrize("largest", [1e-3, 1.0, 10.0, 1e4, 1e6, 4e7])
def test_cosines_and_sines_are_rounded_once(largest):
    angles = (integers(0, 2**24, (5000,), 1).double() * (largest / 2**24)).float().numpy()
    cosine, sine = cosine_and_sine(angles)
    for angle, one, other in zip(angles.tolist(), cosine, sine, strict=True):
        assert (one, other) == (np.float32(math.cos(angle)), np.float32(math.sin(angle)))


def test_angles_near_a_quarter_turn_lose_no_precision():
    """Most of the angle cancels there."""
    angles = (np.arange(20000) * (math.pi / 2)).astype(np.float32)
    for angle, one, other in zip(angles.tolist(), *cosine_and_sine(angles), strict=True):
        assert (one, other) == (np.float32(math.cos(angle)), np.float32(math.sin(angle)))


def test_a_table_that_grows_keeps_its_contents():
    grown, whole = Rotary(RopeScaling("default"), 64), Rotary(RopeScaling("default"), 64)
    for positions in (3, 2048, 2049, 9000):
        grown.table(positions)
    assert torch.equal(grown.table(9000)[:9000], whole.table(9000)[:9000])
    assert torch.equal(whole.table(9000)[8999, :1], torch.tensor([math.cos(8999)]))
