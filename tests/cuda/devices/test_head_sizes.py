"""Models whose heads have two sizes, on our CUDA kernels in the emulator: the same bytes in graphs and alone."""

import pytest
import torch

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.workers.backends.cuda.backend import CudaBackend
from paged_serve.workers.kv.kv_groups import KVGroups
from paged_serve.workers.models.loading import load_model

from ...workers.invariance.planner import Odds, Request
from ...workers.runner.test_kv_groups import UNDISTURBED
from ...workers.tiny_models.checkpoints import write_checkpoint
from ..emulated import EmulatorLauncher
from .emulated_device import EmulatedDevice, StreamLauncher
from .test_kv_groups import GROUP, MAX_LEN, grouped, without_graphs

VARIANTS = [
    "gemma4",  # the last layers read the keys and values of others; layers have inputs
    pytest.param("gemma4-keys-as-values", marks=pytest.mark.nightly),
    pytest.param("gemma4-experts", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_that_take_each_others_freed_blocks_get_the_same_bytes(tmp_path, variant):
    write_checkpoint(variant, tmp_path, torch.bfloat16)
    device = EmulatedDevice()
    backend = CudaBackend(StreamLauncher(EmulatorLauncher(), device.stream), "sm_90a", multiprocessors=2, device="cpu")
    model = load_model(str(tmp_path), ModelConfig(device="cpu"), GROUP, lambda done, total: None, backend=backend)
    groups = KVGroups.of_model(model.geometry, MAX_LEN)
    assert len({model.geometry.of_layer(layer).head_dim for layer in range(model.geometry.num_layers)}) == 2
    params = SamplingParams(temperature=0.0, logprobs=2)
    prompts = [tuple((7 * row + 3 * i) % 190 for i in range(55)) for row in range(3)]
    requests = [Request(prompt, params, row, 5) for row, prompt in enumerate(prompts)]
    together = grouped(model, device)
    found = together.play(requests, Odds(admit=0.6, chunk=1, whole_chunk=0.3, preempt=0.02))
    assert together.reused > 0
    for request, result in zip(requests, found, strict=True):
        assert without_graphs(model, groups).play([request], UNDISTURBED) == [result]
