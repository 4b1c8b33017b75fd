"""Models with adapters on an emulated CUDA device: in graphs, in padded steps and alone a row has the same bits."""

import pytest
import torch

from paged_serve.protocol.messages.config import ModelConfig, SchedulerConfig
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.workers.backends.cuda.backend import CudaBackend
from paged_serve.workers.backends.cuda.sampler import DeviceSampler
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.runner.cuda_runner import cuda_runner
from paged_serve.workers.runner.model_runner import ModelRunner

from ...workers.adapters.loaded import LORA, load, put, step_of
from ...workers.invariance.planner import Odds, Planner, Request
from ...workers.paged_loop import PagedLoop
from ...workers.tiny_models.made_adapters import ALL_LINEAR, make_adapter
from ...workers.tiny_models.tiny_model import write_tiny_model
from ..devices.emulated_device import EmulatedDevice, StreamLauncher
from ..emulated import EmulatorLauncher
from .test_cuda_workloads import Padded

ROWS, BLOCKS, LENGTH = 6, 60, 64
TARGETS = (*ALL_LINEAR, "embed_tokens", "lm_head")
NO_ODDS = Odds(admit=1, chunk=1, whole_chunk=1, preempt=0, pause=0, share=0)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    write_tiny_model(folder)
    return folder


@pytest.fixture(scope="module")
def made(base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    return [make_adapter(folder / str(rank), base, rank, rank, targets=TARGETS) for rank in (3, 16)]


def on_emulator(folder, made, launcher, lora=LORA):
    backend = CudaBackend(launcher, "sm_90a", multiprocessors=2, device="cpu")
    nothing = lambda done, total: None  # noqa: E731
    config = ModelConfig(device="cpu")
    model = load_model(str(folder), config, TensorParallelGroup(), nothing, backend=backend, lora=lora)
    for place, adapter in enumerate(made, start=1):
        assert not put(model, place, adapter).error
    return model


def play(runner, requests, odds):
    return Planner(runner, num_rows=ROWS, num_blocks=BLOCKS, block_size=16, seed=3).play(requests, odds)


def eager(model):
    sampler = DeviceSampler(model.backend.launcher, model.geometry.vocab_size, "cpu")
    sizes = {"num_rows": ROWS, "max_model_len": LENGTH, "max_tokens": 64, "steps_in_flight": 1}
    cache = KVCache.allocate(model.geometry, BLOCKS, 16)
    return ModelRunner(model, cache, TensorParallelGroup(), sampler, decode_step=Padded(ROWS), **sizes)


def with_graphs(model, device):
    scheduler = SchedulerConfig(max_num_seqs=ROWS, max_num_batched_tokens=64)
    cache = KVCache.allocate(model.geometry, BLOCKS, 16)
    runner = cuda_runner(model, cache, TensorParallelGroup(), scheduler, LENGTH, device)
    runner.prepare(lambda done, of: None)
    return runner


def test_a_row_has_its_bits_alone_beside_others_and_in_graphs(base, made):
    emulator = EmulatorLauncher()
    model, plain = on_emulator(base, made, emulator), on_emulator(base, (), emulator, None)
    params = [SamplingParams(temperature=0.0, logprobs=2), SamplingParams(seed=1, logprobs=2, prompt_logprobs=1)]
    requests = [
        Request(tuple(range(9 + row, 20 + 3 * row)), params[row % 2], row, 4, adapter=row % 3) for row in range(5)
    ]
    together = play(eager(model), requests, Odds(share=1))
    for request, found in zip(requests, together, strict=True):
        assert play(eager(model if request.adapter else plain), [request], NO_ODDS) == [found]
    device = EmulatedDevice()
    graphs = with_graphs(on_emulator(base, made, StreamLauncher(emulator, device.stream)), device)
    assert play(graphs, requests, Odds(share=1)) == together


def test_logits_are_about_those_of_plain_torch(base, made):
    model, other = on_emulator(base, made, EmulatorLauncher()), load(base, lora=LORA)
    for place, adapter in enumerate(made, start=1):
        put(other, place, adapter)
        found, expected = (PagedLoop(step_of(each, place)) for each in (model, other))
        rows = [loop.prefill(loop.row([5, 6, 7, 8])) for loop in (found, expected)]
        torch.testing.assert_close(*rows, rtol=0.05, atol=0.15)
