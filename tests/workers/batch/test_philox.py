"""Philox against the known answers of its authors, and against a second, plain implementation."""

import numpy as np
import pytest

from paged_serve.workers.batch.philox import philox4x32, uniforms
from paged_serve.workers.batch.sampling_columns import SamplingColumns

from ..sampling import sampling_oracle as oracle

ONES = 0xFFFFFFFF
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter, key, expected):
    words = philox4x32(np.array(counter, np.uint64)[:, None], np.array(key, np.uint64)[:, None])
    assert tuple(int(word) for word in words[:, 0]) == expected
    assert oracle.philox(counter, key) == expected


def test_uniform_numbers_are_those_of_the_plain_implementation():
    rng = np.random.default_rng(0)
    seeds = np.concatenate(([0, 2**63 - 1], rng.integers(0, 2**63, 200)))
    positions = np.concatenate(([2**31 - 1, 0], rng.integers(0, 2**20, 200)))
    expected = [oracle.uniform(int(seed), int(position)) for seed, position in zip(seeds, positions, strict=True)]
    assert uniforms(seeds, positions).tolist() == expected


def test_a_position_has_one_random_number_in_any_order_of_calls():
    columns = SamplingColumns(num_rows=3, vocab_size=8)
    columns.seed[:] = [7, 2**62, 7]
    rng = np.random.default_rng(1)
    for _ in range(200):
        rows = rng.permutation(3)[: rng.integers(1, 4)]
        positions = rng.integers(0, 300, len(rows))
        expected = [oracle.uniform(int(columns.seed[r]), int(p)) for r, p in zip(rows, positions, strict=True)]
        assert columns.random(rows, positions).tolist() == expected
