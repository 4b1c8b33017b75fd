"""Families written by transformers, on our CUDA kernels in the emulator: accurate, alone and in any batch and chunk."""

import pytest
import torch

from paged_serve.workers.backends.cuda.backend import CudaBackend, computes
from paged_serve.workers.backends.cuda.kernel_list import kernels_for

from ...workers.paged_loop import PagedLoop
from ...workers.tiny_models.checkpoints import ours, random_tokens, reference, reference_logits, transformers_model
from ..compilation.test_kernel_list import RecordingLauncher

VARIANTS = {  # they cover the norms and activations that only such families have
    "opt": torch.bfloat16,  # relu
    "gpt-bigcode": torch.float16,  # gelu by tanh, one head of keys
    "starcoder2-plain-sliding": torch.bfloat16,  # gelu by erf, no biases
    "gemma2": torch.float16,  # caps, windows in every other layer
    "bloom-even": torch.bfloat16,  # ALiBi
    "llama4": torch.bfloat16,  # attention chunks, heads normalised in layers that rotate, query scales in the others
    "stablelm-qk-norm": torch.bfloat16,  # a layer norm with weights of its own for each head
    "nemotron": torch.float16,  # relu squared
    "nanochat": torch.bfloat16,  # RMS norms without weights
    "persimmon": torch.float16,  # layer norms of heads, half of which is rotated
    "xglm": torch.bfloat16,  # computed positions
    "modernbert-decoder": torch.float16,  # a prediction head before the output head
    "bitnet": torch.bfloat16,  # a gated squared ReLU, norms before the last projections
    "apertus": torch.bfloat16,  # xielu, whose parameters differ by layer
    "gemma4": torch.bfloat16,  # heads of two sizes, inputs of layers, shared keys and values, norms of values
    "gemma4-keys-as-values": torch.float16,  # numbers of KV heads that differ by layer
}


NIGHTLY = (
    "opt",
    "bloom-even",
    "gpt-bigcode",
    "starcoder2-plain-sliding",
    "stablelm-qk-norm",
    "nemotron",
    "nanochat",
    "persimmon",
    "xglm",
    "modernbert-decoder",
    "bitnet",
    "apertus",
    "gemma4-keys-as-values",
)


@pytest.mark.parametrize(
    "variant", [pytest.param(name, marks=pytest.mark.nightly if name in NIGHTLY else ()) for name in VARIANTS]
)
def test_a_family_is_close_to_float32_in_any_chunk_and_batch(tmp_path, variant):
    """The error is less than that of transformers, which rounds more often; the launched kernels are those listed."""
    dtype, prompt = VARIANTS[variant], random_tokens(70)
    exact = reference_logits(reference(variant, tmp_path, dtype), prompt)
    by_transformers = reference_logits(transformers_model(tmp_path, dtype), prompt)
    launcher = RecordingLauncher()
    model = ours(tmp_path, backend=CudaBackend(launcher, "sm_90a", 2, device="cpu"))
    assert computes(model.geometry)
    loop = PagedLoop(model, num_blocks=128)
    found = loop.prefill(loop.row(prompt))
    assert (found - exact).norm() < 1.1 * (by_transformers - exact).norm()
    assert torch.equal(loop.prefill(loop.row(prompt), chunk=37), found)
    first, second = loop.row(prompt), loop.row(random_tokens(30, seed=1))
    loop.prefill(second)
    second.token_ids.append(5)
    assert torch.equal(loop.step([(second, 1), (first, 70)])[1:], found)
    listed = kernels_for(model, dtype, loop.block_size)
    assert set(launcher.launched) <= set(listed)
    sampler = {kernel for kernel in listed if kernel.function.startswith("sampler")}
    assert set(listed) - sampler == set(launcher.launched), "a kernel is listed but never launched"
