"""The plan of a CUDA device's memory, with an emulated device: what it measures, and what it leaves behind."""

import gc
import weakref

import pytest

from paged_serve.protocol.messages.config import Config, ModelConfig, SchedulerConfig, SpeculationConfig
from paged_serve.workers.backends.cuda.backend import CudaBackend
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.runner import cuda_memory

from ...workers.tiny_models.tiny_model import write_tiny_model
from ..emulated import EmulatorLauncher
from .emulated_device import EmulatedDevice, StreamLauncher
from .test_ranks import CountedDevice

GROUP, NO_DRAFTS = TensorParallelGroup(), SpeculationConfig("off")


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


def test_trying_graphs_leaves_nothing_in_memory(model, device, monkeypatch):
    """A worker collects no garbage while it starts, and what exists once it is ready is never collected."""
    made = []

    def recorded(*args, **options):
        runner = cuda_runner(*args, **options)
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


class Recorded:
    """A model that records the lengths of each pass's sequences, or the rows of its logits."""

    def __init__(self, model):
        self._model = model
        self.seen = []

    def __getattr__(self, name):
        return getattr(self._model, name)

    def forward(self, batch, cache):
        self.seen.append(batch.kv_lens)
        return self._model.forward(batch, cache)

    def logits(self, hidden, out=None):
        self.seen.append(len(hidden))
        return self._model.logits(hidden, out)


def largest_step(model, device, config):
    """The lengths of its sequences, and the rows of its logits."""
    recorded = Recorded(model)
    budget(config, recorded, device)
    return recorded.seen[0].tolist(), recorded.seen[1]


def test_the_largest_step_has_all_tokens_although_no_sequence_is_as_long(model, device):
    """The model has 64 positions."""
    config = Config(scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=150), speculation=NO_DRAFTS)
    assert largest_step(model, device, config) == ([64, 64, 22], 4)


def test_no_sequence_of_the_largest_step_is_longer_than_configured(model, device):
    scheduler = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=50)
    config = Config(ModelConfig(max_model_len=16), scheduler=scheduler, speculation=NO_DRAFTS)
    assert largest_step(model, device, config) == ([16, 16, 16, 2], 4)


@pytest.mark.parametrize(("num_rows", "num_logits"), [(2, 18), (4, 24)], ids=["drafts of all rows", "all tokens"])
def test_the_largest_step_has_the_logits_of_a_step_that_verifies(model, device, num_rows, num_logits):
    scheduler = SchedulerConfig(max_num_seqs=num_rows, max_num_batched_tokens=24)
    config = Config(scheduler=scheduler, speculation=SpeculationConfig("ngram", num_drafts=8))
    assert largest_step(model, device, config) == ([24], num_logits)
