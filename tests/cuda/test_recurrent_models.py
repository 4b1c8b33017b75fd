"""Whole models with recurrent layers on our CUDA kernels in the emulator: accurate, and the same in any step and graph."""

import pytest
import torch

from paged_serve.workers.backends.cuda.backend import CudaBackend, computes
from paged_serve.workers.backends.cuda.kernel_list import kernels_for

from ..workers.checkpoints import ours, random_tokens, reference, reference_logits, transformers_model
from ..workers.paged_loop import PagedLoop
from .test_kernel_list import RecordingLauncher

VARIANTS = {
    "mamba2": torch.bfloat16,  # no attention and no feed-forward
    "mamba2-biased": torch.float16,  # convolutions without biases, limits of steps
    "lfm2": torch.bfloat16,
    "lfm2-moe": torch.bfloat16,
    "granite4": torch.bfloat16,  # a block of 432 tokens
    "granite4-dense": torch.float16,
    "bamba": torch.bfloat16,
    "qwen3-next": torch.bfloat16,  # gated delta nets, gates of attention
    "nemotron-h": torch.bfloat16,  # layers of one part
    "nemotron-h-dense": torch.float16,
}
IN_CI = ("mamba2",)


@pytest.mark.parametrize(
    "variant", [pytest.param(name, marks=() if name in IN_CI else pytest.mark.nightly) for name in VARIANTS]
)
def test_a_family_is_close_to_float32_in_any_chunk_and_batch(tmp_path, variant):
    """A token's error is usually less than in transformers, which rounds more often; the kernels are those listed."""
    dtype, prompt = VARIANTS[variant], random_tokens(70)
    exact = reference_logits(reference(variant, tmp_path, dtype), prompt)
    by_transformers = reference_logits(transformers_model(tmp_path, dtype), prompt)
    launcher = RecordingLauncher()
    model = ours(tmp_path, backend=CudaBackend(launcher, "sm_90a", 2, device="cpu"))
    assert computes(model.geometry)
    loop = PagedLoop(model)
    for tensor in loop.cache.states:
        tensor.fill_(255)  # NaN
    found = loop.prefill(loop.row(prompt))
    assert _usual_error(found, exact) < 1.1 * _usual_error(by_transformers, exact)
    assert torch.equal(loop.prefill(loop.row(prompt), chunk=37), found)
    first, second = loop.row(prompt), loop.row(random_tokens(30, seed=1))
    loop.prefill(second)
    second.token_ids.append(5)
    assert torch.equal(loop.step([(second, 1), (first, 70)])[1:], found)
    listed = {kernel for kernel in kernels_for(model, dtype, loop.block_size) if "sampler" not in kernel.function}
    assert set(launcher.launched) == listed


def _usual_error(logits, exact):
    return float((logits - exact).norm(dim=1).median())
