"""The whole model on our CUDA kernels in the emulator, with the tests of the other backends."""

import pytest
import torch

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.backends.cuda.backend import CudaBackend
from paged_serve.workers.backends.torch.backend import TorchBackend
from paged_serve.workers.batch.device_rows import DeviceRows
from paged_serve.workers.batch.input_batch import step_arrays
from paged_serve.workers.batch.request_rows import RequestRows
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.runner.cuda_graphs import ladder

from ...workers.runner.test_steps_in_flight import Chunk, new_row
from ...workers.tiny_models.tiny_model import write_tiny_model
from ..emulated import EmulatorLauncher

MODELS = {
    "llama": {},
    "qwen3": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    "mistral": {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 40},
    "gemma": {"model_type": "gemma", "architectures": ["GemmaForCausalLM"]},
    "granite": {
        "model_type": "granite",
        "architectures": ["GraniteForCausalLM"],
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.0625,
        "logits_scaling": 8.0,
    },
    "smollm3": {"model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1, 0]},
}


@pytest.fixture(scope="module")
def launcher():
    return EmulatorLauncher()


@pytest.fixture(params=MODELS)
def folder(request, tmp_path):
    return write_tiny_model(tmp_path, **MODELS[request.param])


def load(folder, backend, dtype="auto"):
    config, group = ModelConfig(device="cpu", dtype=dtype), TensorParallelGroup()
    return load_model(folder, config, group, lambda done, total: None, backend=backend)


def logits_of(model, lengths: list[int]) -> torch.Tensor:
    cache = KVCache.allocate(model.geometry, 64, 16)
    for tensor in (*cache.keys, *cache.values):
        tensor.fill_(float("nan"))
    rows, device_rows = RequestRows(4, 256, 16, model.geometry.vocab_size), DeviceRows(4, 256, 16, 256, "cpu", 1)
    for row, length in enumerate(lengths):
        rows.reset(new_row(row, length))
        device_rows.reset(new_row(row, length))
    device_rows.update()
    chunks = [Chunk(row, length) for row, length in enumerate(lengths)]
    arrays = step_arrays(rows, rows.length[:0], chunks)
    batch = device_rows.batch(device_rows.stage(arrays, len(chunks)), arrays.longest)
    return model.logits(model.forward(batch, cache))


def test_logits_are_as_accurate_as_those_of_plain_torch(folder, launcher):
    """Both round to bfloat16 after each operation, but add in different orders."""
    truth = logits_of(load(folder, TorchBackend(), "float32"), [5, 70])
    by_torch = logits_of(load(folder, TorchBackend()), [5, 70])
    found = logits_of(load(folder, CudaBackend(launcher, "sm_90a", 2, device="cpu")), [5, 70])
    assert (found - truth).norm() < 1.2 * (by_torch - truth).norm()


def test_every_number_of_rows_has_a_graph_size_with_little_padding():
    for most in (1, 3, 7, 8, 100, 128):
        sizes = ladder(most)
        assert sizes[-1] == most
        for count in range(1, most + 1):
            assert min(size for size in sizes if size >= count) - count < 8
