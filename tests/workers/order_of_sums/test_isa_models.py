"""Whole models on every instruction set have the same tokens, logprobs and ranks of requests, bit for bit."""

from collections.abc import Callable
from itertools import cycle

import pytest

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.protocol.messages.message import unpack_ids
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.models.decoder import Model
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.process.rank import DEMO_MODEL

from ..invariance.workloads.random_workload import CHECKPOINTS, MAX_MODEL_LEN, draw_workload
from ..invariance.workloads.test_random_workloads import alone
from ..tiny_models.tiny_model import write_tiny_model

SEEDS = [range(2), pytest.param(range(2, 4), marks=pytest.mark.nightly)]  # each request is computed alone
MODELS = [
    *(
        (checkpoint, quantization, "auto")
        for checkpoint in ("llama", "mistral", "qwen3", "demo")
        for quantization in ("auto", "int8", "int4")
    ),
    *(("llama", quantization, "float16") for quantization in ("auto", "int8", "int4")),
    *(("qwen3", "auto", "float16"), ("demo", "auto", "float16"), ("llama-float32", "auto", "auto")),
]


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Loads the model of a checkpoint on one instruction set."""
    if len(cpu.runnable_isas()) < 2:
        pytest.skip("at most one instruction set is built")
    pools = []

    def load_on(isa: str, checkpoint: str, quantization: str, dtype: str) -> Model:
        home = str(DEMO_MODEL)
        if checkpoint != "demo":
            folder = tmp_path_factory.mktemp(checkpoint)
            home = write_tiny_model(folder, max_position_embeddings=MAX_MODEL_LEN, **CHECKPOINTS[checkpoint])
        pools.append(cpu.Pool(cpu.load_library(isa), [-1], summation="dot"))
        config = ModelConfig(device="cpu", quantization=quantization, dtype=dtype)
        return load_model(home, config, TensorParallelGroup(), lambda done, total: None, pools[-1])

    yield load_on
    for pool in pools:
        pool.close()


@pytest.mark.parametrize("seeds", SEEDS, ids=["first", "more"])
@pytest.mark.parametrize(("checkpoint", "quantization", "dtype"), MODELS)
def test_requests_get_the_same_bytes(
    load: Callable[..., Model], checkpoint: str, quantization: str, dtype: str, seeds: range
) -> None:
    """Each request on the best instruction set and on another in turn; every one computes all golden records."""
    best, *others = (load(isa, checkpoint, quantization, dtype) for isa in cpu.runnable_isas())
    turn, compared = cycle(others), 0
    for seed in seeds[:1] if checkpoint == "demo" else seeds:  # the demo model's steps take longest
        for _, request in draw_workload(seed).arrivals:
            if max(unpack_ids(request.prompt_token_ids)) >= best.geometry.vocab_size:
                continue  # the request is for the demo model's larger vocabulary
            assert alone(next(turn), request) == alone(best, request), request.sampling_params
            compared += 1
    assert compared >= len(others), "too few requests for every instruction set"
