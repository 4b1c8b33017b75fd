"""The operations of several residual streams agree with torch, and a row's bits depend only on that row."""

import pytest
import torch

from paged_serve.workers.backends.cpu.streams import CpuStreamOps
from paged_serve.workers.backends.torch.streams import TorchStreamOps
from paged_serve.workers.kernels.cpu.buffers import Buffers
from paged_serve.workers.kernels.cpu.experts.weighted_rows import TOKENS

STREAMS, SIZE = 4, 40
COUNTS = [1, 3, TOKENS, 2 * TOKENS + 5]
EXPECTED = TorchStreamOps("cpu")


@pytest.fixture
def ops(make_pool):
    if (pool := make_pool()) is None:
        pytest.skip("the kernels are not built")
    return CpuStreamOps(pool, Buffers(), STREAMS)


def random_rows(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(dtype)


def close(found, expected, tolerance=1e-6):
    return (found.double() - expected.double()).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize("tokens", COUNTS)
@pytest.mark.parametrize(("inputs", "outputs"), [(STREAMS, STREAMS + 1), (STREAMS + 1, STREAMS)])
def test_streams_are_mixed_by_weights_of_each_token(inputs, outputs, tokens, ops):
    streams, weights = random_rows(tokens * inputs, SIZE), random_rows(tokens, inputs * outputs)
    out, expected = (torch.empty(tokens * outputs, SIZE) for _ in range(2))
    found = ops.mix(streams, weights, out)
    assert found is out
    assert close(found, EXPECTED.mix(streams, weights, expected))
    alone = ops.mix(streams[-inputs:].clone(), weights[-1:].clone(), torch.empty(outputs, SIZE))
    assert torch.equal(alone, found[-outputs:])


@pytest.mark.parametrize("tokens", COUNTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_stream_of_each_token_is_rounded_as_torch_rounds_it(dtype, tokens, ops):
    streams = random_rows(tokens, STREAMS * SIZE)
    for number in (0, 2):
        stream = streams[:, number * SIZE : (number + 1) * SIZE]
        assert torch.equal(ops.rounded(stream, dtype), stream.to(dtype))


@pytest.mark.parametrize("tokens", COUNTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rows_are_scaled_and_may_become_one_stream_of_each_token(dtype, tokens, ops):
    x, factors = random_rows(tokens, 2 * SIZE, dtype=dtype)[:, SIZE:], random_rows(tokens, 1)
    expected = EXPECTED.scale_rows(x, factors)
    assert torch.equal(ops.scale_rows(x, factors), expected)
    streams = torch.zeros(tokens, STREAMS * SIZE, dtype=dtype)
    ops.scale_rows(x, factors, streams[:, SIZE : 2 * SIZE])
    assert torch.equal(streams[:, SIZE : 2 * SIZE], expected)
    assert streams.count_nonzero() == expected.count_nonzero()


@pytest.mark.parametrize("tokens", COUNTS)
@pytest.mark.parametrize("is_centred", [False, True])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 4e-3), (torch.float16, 5e-4)], ids=str
)
def test_deviations_are_those_of_torch(dtype, tolerance, is_centred, tokens, ops):
    x = random_rows(tokens, 2 * SIZE, dtype=dtype)[:, SIZE:] * 0.01 + 3.0 * (not is_centred)
    sizes = SIZE, dtype
    found = ops.deviations(*sizes, is_centred=is_centred)(x).clone()
    assert close(found, EXPECTED.deviations(*sizes, is_centred=is_centred)(x), tolerance)
    assert torch.equal(ops.deviations(*sizes, is_centred=is_centred)(x[-1:].contiguous()), found[-1:])


@pytest.mark.parametrize("is_centred", [False, True])
def test_rows_of_zeros_deviate_by_zero(is_centred, ops):
    measured = ops.deviations(SIZE, torch.float32, is_centred=is_centred)
    assert measured(torch.zeros(2, SIZE)).tolist() == [[0.0], [0.0]]
