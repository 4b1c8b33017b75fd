"""KV groups on our CUDA kernels in the emulator: in graphs, and in the plan of a device's memory."""

import pytest
import torch

from paged_serve.protocol.messages.config import Config, ModelConfig, SchedulerConfig
from paged_serve.protocol.messages.loading.startup import KVGroup
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.workers.backends.cuda.backend import CudaBackend
from paged_serve.workers.backends.cuda.sampler import DeviceSampler
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kernels.cuda import attention as kernels
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.kv.kv_groups import KVGroups
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.runner.cuda_memory import cuda_budget
from paged_serve.workers.runner.cuda_runner import cuda_runner
from paged_serve.workers.runner.model_runner import ModelRunner
from paged_serve.workers.runner.steps import Steps

from ...workers.invariance.planner import Odds, Planner, Request
from ...workers.runner.test_kv_groups import GROUPS, KINDS, UNDISTURBED
from ...workers.tiny_models.tiny_model import write_tiny_model
from ..emulated import EmulatorLauncher
from .emulated_device import EmulatedDevice, StreamLauncher
from .test_ranks import CountedDevice

NUM_ROWS, NUM_BLOCKS, BLOCK_SIZE, MAX_LEN = 4, 60, 16, 320
SCHEDULER = SchedulerConfig(max_num_seqs=NUM_ROWS, max_num_batched_tokens=256)  # a planner's steps have no limit
GROUP = TensorParallelGroup()


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice()


@pytest.fixture(scope="module")
def model(device, tmp_path_factory):
    family = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "use_sliding_window": True}
    folder = write_tiny_model(
        tmp_path_factory.mktemp("tiny"), max_position_embeddings=MAX_LEN, **family, **KINDS["mixed"]
    )
    launcher = StreamLauncher(EmulatorLauncher(), device.stream)
    backend = CudaBackend(launcher, "sm_90a", multiprocessors=2, device="cpu")
    return load_model(folder, ModelConfig(device="cpu"), GROUP, lambda done, total: None, backend=backend)


def new_cache(model, groups: KVGroups | None) -> KVCache:
    cache = KVCache.allocate(model.geometry, NUM_BLOCKS, BLOCK_SIZE, groups=groups)
    for tensor in (*cache.keys, *cache.values):
        tensor.fill_(torch.nan)
    return cache


def planner_of(runner, seed: int, groups: tuple[KVGroup, ...]) -> Planner:
    sizes = {"num_rows": NUM_ROWS, "num_blocks": NUM_BLOCKS, "block_size": BLOCK_SIZE}
    return Planner(runner, **sizes, seed=seed, groups=groups)


def grouped(model, device) -> Planner:
    """A planner with KV groups and graphs of all sizes."""
    groups = KVGroups.of_model(model.geometry, MAX_LEN)
    steps = Steps(cuda_runner(model, new_cache(model, groups), GROUP, SCHEDULER, MAX_LEN, device), device.mark)
    steps.prepare(lambda done, of: None)
    return planner_of(steps, 3, groups.kinds)


def without_graphs(model, groups: KVGroups | None = None) -> Planner:
    """A planner without graphs; without `groups` it has one table for all layers."""
    sampler = DeviceSampler(model.backend.launcher, model.geometry.vocab_size, "cpu")
    sizes = {"num_rows": NUM_ROWS, "max_model_len": MAX_LEN, "max_tokens": 64, "steps_in_flight": 1}
    kinds = (KVGroup(),) if groups is None else groups.kinds
    return planner_of(ModelRunner(model, new_cache(model, groups), GROUP, sampler, **sizes), 1, kinds)


def test_rows_that_take_each_others_freed_blocks_get_the_same_bytes(model, device):
    params = SamplingParams(temperature=0.0, logprobs=2)
    prompts = [tuple((7 * row + 3 * i) % 290 for i in range(55)) for row in range(3)]
    requests = [Request(prompt, params, row, 5) for row, prompt in enumerate(prompts)]
    together = grouped(model, device)
    assert together.groups == GROUPS["mixed"]
    found = together.play(requests, Odds(admit=0.6, chunk=1, whole_chunk=0.3, preempt=0.02))
    assert together.reused > 0
    for request, result in zip(requests, found, strict=True):
        assert without_graphs(model).play([request], UNDISTURBED) == [result]


def test_groups_of_one_window_list_their_work_once_per_step(model, device, monkeypatch):
    together, lists = grouped(model, device), []
    monkeypatch.setattr(kernels, "plan", lambda launcher, work, *rest: lists.append(work.window))
    monkeypatch.setattr(kernels, "attention", lambda *args, out, **options: out.zero_())
    together.play([Request((5, 6, 7), SamplingParams(temperature=0.0), 1, 1)], UNDISTURBED)
    assert sorted(lists) == [0, 24]


def test_the_memory_plan_takes_its_steps_with_all_groups(model, device):
    """All groups may use the same blocks in these steps, because the results are not used."""
    counted = CountedDevice(device.stream)
    config = Config(ModelConfig(max_model_len=MAX_LEN), scheduler=SCHEDULER)
    assert cuda_budget(config, model, GROUP, counted) == 100_000 * 9 // 10 - (1_500 + 2 * 40) - 7_000
