"""The cases of scripts/kernel_speed/bench_kernels.py that need no large memory run with the kernels as they are."""

import kernel_cases
import pytest
import recurrent_cases
import torch

from paged_serve.workers.checkpoint.packed_weight import WeightFormat

BLOCKS = 4


@pytest.fixture
def cases(make_pool, monkeypatch):
    pool = make_pool(1)
    if pool is None:
        pytest.skip("the kernels are not built")
    monkeypatch.setattr(kernel_cases, "NUM_BLOCKS", BLOCKS)
    monkeypatch.setattr(recurrent_cases, "STATES_BYTES", 1 << 20)
    monkeypatch.setattr(recurrent_cases, "SHAPES", ((2, 1), (1, 3)))
    shape = 2, BLOCKS, kernel_cases.KV_HEADS, kernel_cases.BLOCK_SIZE, kernel_cases.HEAD_DIM
    cache = torch.zeros(shape, dtype=torch.bfloat16)
    weights = [kernel_cases.random_weight(pool, weight_format, 64, 256) for weight_format in WeightFormat]
    products = (kernel_cases.gemm_case(pool, [weight], 2) for weight in weights)
    others = (kernel_cases.Case(*case) for case in recurrent_cases.recurrent_cases(pool))
    return [*products, *kernel_cases.elementwise_cases(pool, cache, 2), *kernel_cases.sampling_cases(pool, 2), *others]


def test_the_cases_of_the_benchmark_run(cases):
    for case in cases:
        case.call()
        assert case.nbytes > 0, case.kernel
