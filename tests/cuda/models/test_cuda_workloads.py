"""Whole workloads on our CUDA kernels in the emulator: requests have the same bits alone and in any batch.

The engine and its requests are those of tests/workers/invariance/workloads/test_random_workloads.py; the runner does
not wait.
"""

from collections import Counter
from functools import cache

import pytest
import torch

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.backends.cuda.backend import CudaBackend
from paged_serve.workers.backends.cuda.sampler import DeviceSampler
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.layers.decode_step import EagerDecodeStep
from paged_serve.workers.models.decoder import Model
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.process.rank import DEMO_MODEL

from ...workers.invariance.workloads.random_workload import MAX_MODEL_LEN, draw_expert_workload, draw_latent_workload
from ...workers.invariance.workloads.test_random_workloads import run_workload
from ...workers.invariance.workloads.workload_models import TINY
from ...workers.one_process import NotWaiting
from ...workers.tiny_models.tiny_model import write_tiny_model
from ..emulated import EmulatorLauncher

SLICE = (7, 15)
FP8_SEED = 1
NIGHTLY = range(100)
OF_KERNELS = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16}
EXPERTS_NIGHTLY = range(40)


class Padded(EagerDecodeStep):
    """Pads decode steps, as CUDA graphs do."""

    def __init__(self, max_rows: int):
        self._max_rows = max_rows

    def padded(self, num_rows: int) -> int:
        return min(num_rows + 3, self._max_rows)


class EmulatedProcess(NotWaiting):
    @property
    def decode_step(self) -> Padded:
        return Padded(self.config.scheduler.max_num_seqs)

    def new_sampling(self, model: Model) -> DeviceSampler:
        return DeviceSampler(model.backend.launcher, model.geometry.vocab_size, "cpu")


class Fp8Process(EmulatedProcess):
    cache_dtype = torch.float8_e4m3fn


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    launcher = EmulatorLauncher()

    @cache
    def named(checkpoint: str):
        folder = str(DEMO_MODEL)
        if checkpoint != "demo":
            changes = {**TINY[checkpoint], "max_position_embeddings": MAX_MODEL_LEN}
            changes |= OF_KERNELS if checkpoint == "latent" else {}
            folder = write_tiny_model(tmp_path_factory.mktemp(checkpoint), **changes)
        backend = CudaBackend(launcher, "sm_90a", multiprocessors=2, device="cpu")
        config = ModelConfig(device="cpu")
        return load_model(folder, config, TensorParallelGroup(), lambda done, total: None, backend=backend)

    return lambda choice: named(choice.checkpoint.removesuffix("-float32"))


def test_a_slice_of_random_workloads_gives_each_request_the_same_bytes(load):
    total = sum((run_workload(load, seed, EmulatedProcess, EmulatedProcess) for seed in SLICE), Counter[str]())
    for event in ("cached tokens", "restarts"):
        assert total[event], f"there were no {event}, so the slice does not test them"


@pytest.mark.nightly
def test_a_workload_with_an_fp8_cache_gives_each_request_the_same_bytes(load):
    assert run_workload(load, FP8_SEED, Fp8Process, Fp8Process)["tokens"]


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("process_type", [EmulatedProcess, Fp8Process])
@pytest.mark.parametrize("seed", NIGHTLY)
def test_a_random_workload_gives_each_request_the_same_bytes(load, seed, process_type):
    run_workload(load, seed, process_type, process_type)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("draw", [draw_expert_workload, draw_latent_workload])
def test_random_workloads_with_experts_and_latent_attention_give_each_request_the_same_bytes(load, draw):
    both = (EmulatedProcess, EmulatedProcess)
    total = sum((run_workload(load, seed, *both, draw) for seed in EXPERTS_NIGHTLY), Counter[str]())
    for event in ("cached tokens", "preemptions", "restarts", "aborts"):
        assert total[event], f"there were no {event}, so the workloads do not test them"
