"""The warm-up step: no request waits for it, and it changes no output."""

import subprocess
import sys

import pytest

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import Chunk, NewRow, SchedulerOutput
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.process.warm_up import warm_up
from paged_serve.workers.runner.model_runner import ModelRunner

from ..host_runners import new_host_runner
from ..tiny_models.tiny_model import write_tiny_model


@pytest.fixture
def make_runner(tmp_path):
    model = load_model(write_tiny_model(tmp_path), ModelConfig(device="cpu"), TensorParallelGroup(), lambda *_: None)

    def make(max_model_len: int) -> ModelRunner:
        cache = KVCache.allocate(model.geometry, 4, 16)
        return new_host_runner(model, cache, 2, max_model_len)

    return make


def first_answers(runner: ModelRunner) -> list[tuple[bytes, object]]:
    row = NewRow(0, pack_ids([5, 6, 7]), 3, 0, (pack_ids([0]),), 7, (2,), SamplingParams(logprobs=3))
    plans = [
        SchedulerOutput(0, 1, (row,), chunks=(Chunk(0, 3),)),
        SchedulerOutput(0, 2, decode_joins=pack_ids([0])),
        SchedulerOutput(0, 3),
    ]
    answers = [runner.execute(plan) for plan in plans]
    return [(answer.token_ids, answer.logprobs) for answer in answers]


def test_the_first_request_is_the_same_with_and_without_warm_up(make_runner):
    cold, warm = make_runner(64), make_runner(64)
    warm_up(warm.execute, 64)
    assert first_answers(warm) == first_answers(cold)


@pytest.mark.parametrize("max_model_len", range(1, 7))
def test_every_context_length_can_be_warmed_up(make_runner, max_model_len):
    warm_up(make_runner(max_model_len).execute, max_model_len)


def test_a_ranks_start_on_a_cpu_imports_neither_torch_compile_nor_what_cuda_needs(tmp_path):
    """The rank takes its first steps, so later imports would be detected, too."""
    code = """
import sys
from paged_serve.protocol.messages.config import CacheConfig, Config, ModelConfig
from paged_serve.workers.process import worker_process
from paged_serve.workers.process.rank import Rank
config = Config(model=ModelConfig(model=sys.argv[1], device="cpu"), cache=CacheConfig(num_blocks=8))
rank = Rank.load(config, 0, "", lambda *_: None)
rank.ready()
rank.create_kv_cache(8, lambda *_: None)
unwanted = ("torch._dynamo", "cupy", "cupy_backends", "paged_serve.workers.kernels.cuda")
print(*(name for name in unwanted if name in sys.modules), "end")
"""
    command = [sys.executable, "-c", code, str(write_tiny_model(tmp_path))]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert found.splitlines()[-1] == "end"
