"""Growth is distinguished from noise."""

import math
import random

import pytest

from .trend import slope_per_hour

SECONDS = [2.0 * index for index in range(600)]  # twenty minutes


def test_a_straight_line_has_its_slope_and_no_error():
    slope = slope_per_hour(SECONDS, [7 + 3 * at / 3600 for at in SECONDS])
    assert slope.value == pytest.approx(3)
    assert slope.low == pytest.approx(3)
    assert slope.high == pytest.approx(3)


def test_noise_is_not_growth_and_growth_is_found_in_noise():
    draw = random.Random(1)
    is_covered = 0
    for _ in range(200):
        slope = slope_per_hour(SECONDS, [5 * at / 3600 + draw.gauss(0, 2) for at in SECONDS])
        is_covered += slope.low < 5 < slope.high
        assert 0 < slope.value < 10
    assert 180 <= is_covered < 200  # 95 %


def test_passing_peaks_do_not_change_the_slope():
    values = [100.0 + 50 * (index % 20 == 0) for index in range(len(SECONDS))]
    assert slope_per_hour(SECONDS, values).value == pytest.approx(0)


def test_few_samples_give_no_verdict():
    slope = slope_per_hour([0.0, 1.0], [0.0, 1e9])
    assert (slope.low, slope.high) == (-math.inf, math.inf)
