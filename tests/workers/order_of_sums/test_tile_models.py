"""Whole models in tile order keep the determinism contract and have the same bits on every instruction set."""

import pytest
import torch

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.process.rank import DEMO_MODEL

from ..paged_loop import PagedLoop
from ..tiny_models.checkpoints import random_tokens

PROMPT_TOKENS = 145
FORMS = [
    *[("auto", torch.bfloat16), ("auto", torch.int8), ("int8", torch.bfloat16), ("int4", torch.bfloat16)],
    *[("auto", torch.float16), ("int4", torch.float16)],
]


@pytest.fixture(scope="module", params=FORMS, ids=str)
def form(request):
    """(quantization of the weights, dtype of the KV cache); with a cache of float16 all numbers are float16."""
    if not cpu.runnable_isas():
        pytest.skip("the kernels are not built")
    return request.param


@pytest.fixture(scope="module")
def logits(form):
    """Logits of a prompt [tokens, vocab], by instruction set, threads, order of sums, chunks and other rows."""
    quantization, dtype = form
    pools = []

    def run(isa=None, threads=1, summation="tile", chunks=(PROMPT_TOKENS,), beside=0):
        pools.append(cpu.Pool(cpu.best_library(isa), [-1] * threads, summation=summation))
        model_dtype = "float16" if dtype == torch.float16 else "auto"
        config = ModelConfig(device="cpu", quantization=quantization, dtype=model_dtype)
        model = load_model(str(DEMO_MODEL), config, TensorParallelGroup(), lambda done, total: None, pools[-1])
        loop = PagedLoop(model, dtype=dtype)
        rows = [loop.row(random_tokens(PROMPT_TOKENS, seed)) for seed in range(1 + beside)]
        return torch.cat([loop.step([(row, count) for row in rows])[:count] for count in chunks])

    yield run
    for pool in pools:
        pool.close()


@pytest.fixture(scope="module")
def alone(logits):
    return logits()


def test_chunks_neighbours_and_threads_change_no_bit(logits, alone):
    for chunks in ((120, *[1] * 25), (17, 33, 64, 31), (1, 80, 64)):
        assert torch.equal(logits(threads=2, chunks=chunks, beside=2), alone)


def test_every_instruction_set_gives_the_same_bits(logits, alone):
    for isa in cpu.runnable_isas()[1:]:
        assert torch.equal(logits(isa), alone), isa


def test_the_orders_differ(logits, alone, form):
    """Except of int4 with float16: sums of 32 products of codes are mostly exact, and its attention has one order."""
    assert torch.equal(logits(summation="dot"), alone) == (form == ("int4", torch.float16))
