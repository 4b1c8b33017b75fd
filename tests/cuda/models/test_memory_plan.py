"""The plan of a CUDA device's memory, with an emulated device: what it measures, and what it leaves behind."""

import gc
import weakref

import pytest

from paged_serve.protocol.messages.config import Config, ModelConfig, SchedulerConfig
from paged_serve.workers.backends.cuda.backend import CudaBackend
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.runner import cuda_memory

from ...workers.tiny_models.tiny_model import write_tiny_model
from ..devices.emulated_device import EmulatedDevice, StreamLauncher
from ..devices.test_ranks import CountedDevice
from ..emulated import EmulatorLauncher

GROUP, NO_DRAFTS = TensorParallelGroup()("off")


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice()


@pytest.fixture(scope="module")
def model(device, tmp_path_factory):
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=64)
    launcher = StreamLauncher(EmulatorLauncher(), device.stream)
    backend = CudaBackend(launcher, "sm_90a", multiprocessors=2, device="cpu")
    return load_model(folder, ModelConfig(device="cpu"), GROUP, lambda done, total: None, backend=backend)


def budget(config, model, device):
    return cuda_memory.cuda_budget(config, model, GROUP, CountedDevice(device.stream))


def test_the_trial_of_graphs_leaves_nothing_in_memory(model, device, monkeypatch):
    """A worker collects no garbage while it starts, and what exists once it is ready is never collected."""
    made = []

    def recorded(*args):
        runner = cuda_runner(*args)
        made.extend(map(weakref.ref, (runner, runner._decode_step, runner._logits)))
        return runner

    config = Config(scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16))
    budget(config, model, device)  # the emulator's first capture imports modules of torch that keep their frames
    cuda_runner = cuda_memory.cuda_runner
    monkeypatch.setattr(cuda_memory, "cuda_runner", recorded)
    gc.disable()
    try:
        budget(config, model, device)
        assert [each() for each in made] == [None] * 3
    finally:
        gc.enable()
