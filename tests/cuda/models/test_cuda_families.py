"""Other forms of layers on our CUDA kernels in the emulator: post-norms, norms over all heads, reordered heads."""

import json
from dataclasses import replace

import pytest
import torch

from paged_serve.workers.backends.cuda.backend import CudaBackend, computes
from paged_serve.workers.backends.cuda.kernel_list import load_kernels
from paged_serve.workers.backends.torch.backend import TorchBackend
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.models.registry import read_geometry

from ...workers.tiny_models.checkpoints import SHAPE, write_checkpoint
from ..compilation.test_kernel_list import BLOCK_SIZE, NUM_BLOCKS, RecordingLauncher, take_steps
from ..emulated import EmulatorLauncher
from .test_cuda_backend import load, logits_of


@pytest.mark.parametrize(
    "variant",
    ["olmo2", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("glm4", "exaone4", "phi3-longrope"))],
)
def test_layers_of_other_forms_are_as_accurate_as_those_of_plain_torch(variant, tmp_path):
    write_checkpoint(variant, tmp_path, torch.bfloat16)
    truth = logits_of(load(str(tmp_path), TorchBackend(), "float32"), [5, 70])
    by_torch = logits_of(load(str(tmp_path), TorchBackend()), [5, 70])
    model = load(str(tmp_path), CudaBackend(EmulatorLauncher(), "sm_90a", 2, device="cpu"))
    assert computes(model.geometry)
    assert (logits_of(model, [5, 70]) - truth).norm() < 1.2 * (by_torch - truth).norm()


def test_kernels_are_not_for_relative_positions(tmp_path):
    fields = SHAPE | {"architectures": ["MPNetModel"]}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    geometry = read_geometry(tmp_path, "bfloat16")[1]
    assert geometry.relative_positions is not None
    assert not computes(geometry)
    assert computes(replace(geometry, relative_positions=None))


@pytest.mark.parametrize("variant", ["cohere", "olmo2", pytest.param("opt-350m", marks=pytest.mark.nightly)])
def test_the_kernel_list_has_the_norms_of_layers_of_other_forms(variant, tmp_path):
    write_checkpoint(variant, tmp_path, torch.bfloat16)
    model = load(str(tmp_path), CudaBackend(launcher := RecordingLauncher(), "sm_90a", 2, device="cpu"))
    load_kernels(model, torch.bfloat16, BLOCK_SIZE, lambda *progress: None)
    take_steps(model, KVCache.allocate(model.geometry, NUM_BLOCKS, BLOCK_SIZE))
    assert set(launcher.launched) == set(launcher.loaded)
