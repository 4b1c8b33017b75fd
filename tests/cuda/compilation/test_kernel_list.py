"""The kernels that a worker compiles before its first step are exactly those that its steps launch."""

from collections import Counter
from threading import Lock

import pytest
import torch
from msgspec import structs

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.protocol.messages.message import pack_ids, unpack_ids
from paged_serve.protocol.messages.samplers import Xtc
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import Chunk, SchedulerOutput
from paged_serve.workers.backends.cuda.backend import CudaBackend
from paged_serve.workers.backends.cuda.kernel_list import load_kernels
from paged_serve.workers.backends.cuda.sampler import DeviceSampler
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.runner.model_runner import ModelRunner

from ...workers.ranks import on_ranks
from ...workers.runner.test_steps_in_flight import new_row
from ...workers.tiny_models.tiny_model import write_tiny_model
from ..emulated import EmulatorLauncher
from ..models.test_cuda_backend import MODELS

FP8 = torch.float8_e4m3fn
ALL_OF_IT = SamplingParams(
    top_k=9,
    top_p=0.8,
    min_p=0.01,
    repetition_penalty=1.2,
    logprobs=2,
    prompt_logprobs=1,
    logit_bias={3: 1.0},
    xtc=Xtc(probability=1.0, threshold=0.1),
)
NUM_BLOCKS, BLOCK_SIZE = 64, 16  # of new_row
ALONE = TensorParallelGroup()


class RecordingLauncher(EmulatorLauncher):
    """Records loaded and launched kernels."""

    def __init__(self, one_at_a_time=None):
        super().__init__()
        self.loaded, self.launched = [], Counter()
        self._one_at_a_time = one_at_a_time or self._one_at_a_time  # shared if libraries are shared

    def load_all(self, kernels, on_progress=None):
        self.loaded += kernels
        on_progress(len(self.loaded), len(self.loaded))

    def launch(self, kernel, grid, params):
        self.launched[kernel] += 1
        super().launch(kernel, grid, params)


def take_steps(model, cache, group=ALONE):
    """Run a prompt too long for the decode shape, decode with a chunk, all ways to sample, and log-probabilities."""
    sampler = DeviceSampler(model.backend.launcher, model.geometry.vocab_size, model.device)
    sizes = {"num_rows": 4, "max_model_len": 256, "max_tokens": 256, "steps_in_flight": 2}
    runner = ModelRunner(model, cache, group, sampler, **sizes)
    rows = [new_row(0, 70, ALL_OF_IT), new_row(1, 3, SamplingParams(temperature=0.0))]
    rows = tuple(within(model.geometry.vocab_size, row) for row in rows)
    for plan in (
        SchedulerOutput(0, 1, new_rows=rows, chunks=(Chunk(0, 70),)),
        SchedulerOutput(0, 2, decode_joins=pack_ids([0]), chunks=(Chunk(1, 3),)),
        SchedulerOutput(0, 3, decode_joins=pack_ids([1])),
    ):
        runner.execute(plan)


def within(vocab_size, row):
    return structs.replace(row, token_ids=pack_ids(token % vocab_size for token in unpack_ids(row.token_ids)))


@pytest.mark.parametrize("quantization", ["auto", "fp8"])
@pytest.mark.parametrize("cached", [torch.bfloat16, FP8], ids=str)
@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("tied", [False, True])
def test_the_kernel_list_is_what_steps_launch(tmp_path, family, cached, quantization, tied):
    folder = write_tiny_model(tmp_path, **MODELS[family], tie_word_embeddings=tied)
    backend = CudaBackend(launcher := RecordingLauncher(), "sm_90a", 2, device="cpu")
    config = ModelConfig(device="cpu", quantization=quantization)
    model = load_model(folder, config, ALONE, lambda done, total: None, backend=backend)
    reported = []
    load_kernels(model, cached, BLOCK_SIZE, lambda *progress: reported.append(progress))
    assert not launcher.launched, "a kernel was launched before all were loaded"
    assert reported
    take_steps(model, KVCache.allocate(model.geometry, NUM_BLOCKS, BLOCK_SIZE, dtype=cached))
    assert set(launcher.launched) == set(launcher.loaded)
    assert len(launcher.loaded) == len(set(launcher.loaded))


def test_the_kernel_list_of_each_of_two_ranks_is_what_its_steps_launch(tmp_path):
    """Only rank 0 samples."""
    folder, one_at_a_time = write_tiny_model(tmp_path), Lock()
    config = ModelConfig(device="cpu", quantization="fp8")

    def work(group):
        launcher = RecordingLauncher(one_at_a_time)
        backend = CudaBackend(launcher, "sm_90a", 2, device="cpu")
        model = load_model(folder, config, group, lambda done, total: None, backend=backend)
        load_kernels(model, FP8, BLOCK_SIZE, lambda done, total: None)
        take_steps(model, KVCache.allocate(model.geometry, NUM_BLOCKS, BLOCK_SIZE, group.size, dtype=FP8), group)
        return set(launcher.launched), set(launcher.loaded)

    (launched, loaded), (launched_by_other, loaded_by_other) = on_ranks(2, tmp_path / "rendezvous", work)
    assert launched == loaded == loaded_by_other
    assert launched_by_other <= loaded
