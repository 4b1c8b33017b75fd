"""Whole models with experts on our CUDA kernels in the emulator: close to float32, in any batch and chunk."""

import pytest
import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.backends.cuda.backend import CudaBackend, computes
from paged_serve.workers.backends.cuda.kernel_list import kernels_for

from ...workers.paged_loop import PagedLoop
from ...workers.tiny_models.checkpoints import (
    ours,
    random_tokens,
    reference,
    reference_logits,
    transformers_model,
    write_checkpoint,
)
from ..compilation.test_kernel_list import RecordingLauncher

VARIANTS = {
    "mixtral": torch.float16,  # softmax, weights renormalised; in bfloat16 another expert is chosen in plain torch, too
    "qwen3-moe": torch.float16,  # a dense layer between
    "gpt-oss": torch.bfloat16,  # softmax of the chosen, biases, clamped gates
    "glm4-moe-wide": torch.bfloat16,  # groups, corrected sigmoids, a shared expert
    "qwen2-moe": torch.bfloat16,  # a shared expert with a gate
    "llama4-experts": torch.bfloat16,  # weights multiply inputs
    "phimoe": torch.bfloat16,  # sparse mixer
    "granitemoe": torch.float16,
    "olmoe": torch.bfloat16,
    "laguna": torch.bfloat16,  # softplus gates of attention, numbers of heads that differ by layer
    "mimo-v2": torch.bfloat16,  # numbers of KV heads that differ by layer, sinks in some, values narrower than keys
    "deepseek-v2": torch.bfloat16,  # latent attention; a group counts as its best expert
    "deepseek-v3": torch.float16,  # latent attention
    "axk1": torch.float16,  # latent attention; a norm after experts alone
    "flint": torch.bfloat16,  # sinks, layers without rotation
    "kolibri1": torch.float16,  # sigmoids of the chosen
    "aria": torch.bfloat16,  # matrices of experts stored as [in, out]
    "mistral4": torch.bfloat16,  # latent attention whose queries grow with the position
    "dbrx": torch.bfloat16,  # layer norms without biases, clipping
    "gemma4-experts": torch.float16,  # beside a dense feed-forward, factors of weights
    "deepseek-v3-halves": torch.bfloat16,  # queries are projected directly
}


@pytest.mark.nightly
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_family_is_close_to_float32_in_any_chunk_and_batch(tmp_path, variant):
    """A token's error is usually less than in transformers, which rounds more often; the kernels are those listed.

    An expert whose score is nearly another's may be chosen in 16 bits and not in float32, so the median is compared.
    """
    dtype, prompt = VARIANTS[variant], random_tokens(70)
    exact = reference_logits(reference(variant, tmp_path, dtype), prompt)
    by_transformers = reference_logits(transformers_model(tmp_path, dtype), prompt)
    launcher = RecordingLauncher()
    model = ours(tmp_path, backend=CudaBackend(launcher, "sm_90a", 2, device="cpu"))
    assert computes(model.geometry)
    loop = PagedLoop(model)
    found = loop.prefill(loop.row(prompt))
    assert _usual_error(found, exact) < 1.1 * _usual_error(by_transformers, exact)
    assert torch.equal(loop.prefill(loop.row(prompt), chunk=37), found)
    first, second = loop.row(prompt), loop.row(random_tokens(30, seed=1))
    loop.prefill(second)
    second.token_ids.append(5)
    assert torch.equal(loop.step([(second, 1), (first, 70)])[1:], found)
    listed = {kernel for kernel in kernels_for(model, dtype, loop.block_size) if "sampler" not in kernel.function}
    assert set(launcher.launched) == listed


def test_experts_that_return_their_input_are_refused(tmp_path):
    write_checkpoint("longcat-flash", tmp_path, torch.bfloat16)
    with pytest.raises(ConfigError, match="zero_expert_num=6, experts that return their input, have no CUDA kernel"):
        ours(tmp_path, backend=CudaBackend(RecordingLauncher(), "sm_90a", 2, device="cpu"))


def _usual_error(logits, exact):
    return float((logits - exact).norm(dim=1).median())
