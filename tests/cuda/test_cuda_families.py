"""Layers of other forms on our CUDA kernels, which the emulator runs: norms behind, whole norms, heads reordered."""

import pytest
import torch

from paged_serve.workers.backends.cuda.backend import CudaBackend, computes
from paged_serve.workers.backends.torch.backend import TorchBackend

from ..workers.checkpoints import reference
from .emulated import EmulatorLauncher
from .test_cuda_backend import load, logits_of


@pytest.mark.parametrize(
    "variant",
    ["olmo2", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("glm4", "exaone4", "phi3-longrope"))],
)
def test_layers_of_other_forms_are_as_accurate_as_those_of_plain_torch(variant, tmp_path):
    reference(variant, tmp_path, torch.bfloat16)
    truth = logits_of(load(str(tmp_path), TorchBackend(), "float32"), [5, 70])
    by_torch = logits_of(load(str(tmp_path), TorchBackend()), [5, 70])
    model = load(str(tmp_path), CudaBackend(EmulatorLauncher(), "sm_90a", 2, device="cpu"))
    assert computes(model.geometry)
    assert (logits_of(model, [5, 70]) - truth).norm() < 1.2 * (by_torch - truth).norm()
