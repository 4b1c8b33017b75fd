"""A model on our CUDA kernels with an e4m3 KV cache: the same bits in any batch, and close to a 16-bit cache."""

import pytest
import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import CacheConfig, Config
from paged_serve.workers.backends.cuda.backend import CudaBackend
from paged_serve.workers.backends.torch.backend import TorchBackend
from paged_serve.workers.kv.budget import cache_dtype

from ...workers.mixers import with_parts
from ...workers.paged_loop import PagedLoop
from ...workers.tiny_models.checkpoints import random_tokens
from ...workers.tiny_models.tiny_model import write_tiny_model
from ..emulated import EmulatorLauncher
from .test_cuda_backend import load

LENGTH = 24
FP8 = torch.float8_e4m3fn
CONFIG = Config(cache=CacheConfig(kv_cache_dtype="fp8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


def on_emulator(folder, dtype="auto"):
    return load(folder, CudaBackend(EmulatorLauncher(), "sm_90a", 2, device="cpu"), dtype)


@pytest.fixture(scope="module")
def model(folder):
    return on_emulator(folder)


class RoundingOps:
    """Operations on a cache of the model's dtype whose contents are rounded to e4m3."""

    def __init__(self, ops):
        self._ops = ops

    def __getattr__(self, name):
        return getattr(self._ops, name)

    def rotate_and_cache(self, step, layer, *rest):
        query = self._ops.rotate_and_cache(step, layer, *rest)
        for tensor in (step.view.cache.keys[layer], step.view.cache.values[layer]):
            tensor.copy_(tensor.to(FP8))
        return query


def loop_of(model, **options):
    return PagedLoop(model, dtype=FP8, **options)


@pytest.fixture(scope="module")
def alone(model):
    """Each prompt's logits, computed alone in one chunk."""
    loop = loop_of(model)
    return [loop.prefill(loop.row(random_tokens(LENGTH, seed))) for seed in range(2)]


def test_chunks_and_steps_give_the_same_bits(model, alone):
    loop = loop_of(model, seed=1)
    row = loop.row(random_tokens(LENGTH))
    chunks = [loop.step([(row, count)]) for count in (17, 1, 1, LENGTH - 19)]
    assert torch.equal(torch.cat(chunks), alone[0])


def test_neighbours_and_blocks_change_no_bit(model, alone):
    loop = loop_of(model, block_size=32, seed=2)
    rows = [loop.row(random_tokens(LENGTH, seed)) for seed in range(2)]
    steps = [loop.step([(row, count) for row in rows]).split(count) for count in (1, LENGTH - 1)]
    for row in range(2):
        assert torch.equal(torch.cat([step[row] for step in steps]), alone[row])


def test_logits_are_near_those_of_a_full_precision_cache_of_e4m3_values(folder):
    """Keys are rounded once to codes, but twice in the reference, which rarely matters in float16."""
    model = on_emulator(folder, "float16")
    rounding = with_parts(model, ops=RoundingOps(model.ops))
    found, expected, whole = (
        loop.prefill(loop.row(random_tokens(LENGTH)))
        for loop in (loop_of(model), PagedLoop(rounding), PagedLoop(model))
    )
    assert (found - expected).norm() < 0.3 * (found - whole).norm() < 0.1 * whole.norm()


def test_the_cache_has_the_promised_size_and_is_refused_without_a_kernel_that_reads_it(model, folder):
    assert cache_dtype(CONFIG, model) == FP8
    assert cache_dtype(Config(), model) == model.dtype
    halved, whole = (model.geometry.kv_bytes_per_block(16, 1, dtype) for dtype in (FP8, model.dtype))
    assert 2 * halved == whole
    with pytest.raises(ConfigError, match=r"kv_cache_dtype=int8 needs the CPU kernels .*; use kv_cache_dtype=fp8$"):
        cache_dtype(Config(cache=CacheConfig(kv_cache_dtype="int8")), model)
    with pytest.raises(ConfigError, match=r"needs the CUDA kernels .* on cpu in bfloat16; use kv_cache_dtype=auto$"):
        cache_dtype(CONFIG, load(folder, TorchBackend()))
