"""A token's bits depend only on its query and its request's keys and values, however it is computed."""

from dataclasses import replace

import pytest
import torch

from ..checks.attention_case import ALL_DECODE, ALL_PREFILL, PLAIN, Batch, Options, batch, run
from ..checks.checks_attention import USUAL
from .test_attention import KINDS

LENGTHS = [(1, 600), (21, 500), (2, 63), (1, 1030), (5, 0)]
OPTIONS = [PLAIN, Options(window=530, sinks=True)]


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("options", OPTIONS)
def test_neighbours_change_no_bit(launcher, options):
    cases = batch(USUAL, LENGTHS)
    together = run(launcher, cases, options).split([len(r.query) for r in cases.requests])
    for request, found in zip(cases.requests, together, strict=True):
        assert torch.equal(run(launcher, Batch(USUAL, [request]), options), found)


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("length", [1, 7, 17])
def test_chunks_and_steps_change_no_bit(launcher, options, length):
    (request,) = batch(USUAL, [(24, 500)]).requests
    whole = run(launcher, Batch(USUAL, [request]), options)
    chunks = [request.chunk(i, min(i + length, 24)) for i in range(0, 24, length)]
    found = [run(launcher, Batch(USUAL, [chunk]), options) for chunk in chunks]
    assert torch.equal(torch.cat(found), whole)


@pytest.mark.parametrize("heads", [USUAL, *KINDS])
def test_decode_and_prefill_shapes_give_the_same_bits(launcher, heads):
    cases = batch(heads, [(1, 520), (19, 505)])
    decode, prefill = (
        run(launcher, cases, replace(PLAIN, window=480, max_decode_rows=rows)) for rows in (ALL_DECODE, ALL_PREFILL)
    )
    assert torch.equal(decode, prefill)


@pytest.mark.parametrize("change", [{"blocks": 1}, {"blocks": 64}, {"max_slots": 40}, {"max_slots": 1}])
def test_the_grid_and_the_room_for_parts_change_no_bit(launcher, change):
    cases = batch(USUAL, LENGTHS)
    assert torch.equal(run(launcher, cases, replace(PLAIN, **change)), run(launcher, cases))


@pytest.mark.cpu_kernels
def test_block_ids_and_block_size_change_no_bit(launcher):
    requests = batch(USUAL, LENGTHS).requests
    expected = run(launcher, Batch(USUAL, requests))
    assert torch.equal(run(launcher, Batch(USUAL, requests, seed=5)), expected)
    larger = Batch(replace(USUAL, block_size=64), requests)
    assert torch.equal(run(launcher, larger, replace(PLAIN, max_decode_rows=ALL_DECODE)), expected)
