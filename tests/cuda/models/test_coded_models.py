"""Models whose weights stay codes of 4 bits, on our CUDA kernels in the emulator."""

import pytest
import torch

from paged_serve.workers.backends.cuda.backend import CudaBackend
from paged_serve.workers.backends.cuda.kernel_list import kernels_for
from paged_serve.workers.backends.cuda.products.coded_linear import CodedLinear
from paged_serve.workers.checkpoint.weight_forms import GroupedWeight
from paged_serve.workers.kernels.cuda.experts.coded_weight import CodedWeight

from ...workers.paged_loop import PagedLoop
from ...workers.quantization.test_mxfp4 import folders  # noqa: F401 - a fixture
from ...workers.tiny_models.checkpoints import ours, random_tokens, write_checkpoint
from ...workers.tiny_models.modelopt_checkpoints import FP4
from ...workers.tiny_models.quantized_checkpoints import write_quantized
from ..compilation.test_kernel_list import RecordingLauncher
from ..emulated import EmulatorLauncher

BF16 = torch.bfloat16
PROMPT = random_tokens(40)


class OfNumbers(CudaBackend):
    """A backend that dequantizes all codes."""

    def accepted(self, weight, dtype):
        return weight.dequantized().to(dtype) if isinstance(weight, GroupedWeight) else super().accepted(weight, dtype)


def backend(kind=CudaBackend, launcher=None):
    return kind(launcher or EmulatorLauncher(), "sm_90a", 2, device="cpu")


def logits(model):
    loop = PagedLoop(model, num_blocks=128)
    return loop.prefill(loop.row(PROMPT))


def test_experts_in_mxfp4_have_the_bits_of_their_numbers(folders):  # noqa: F811
    model = ours(folders["packed"], backend=backend())
    experts = model.layers[0].feed_forward
    assert isinstance(experts._gate_up, CodedWeight)
    assert isinstance(experts._down, CodedWeight)
    assert torch.equal(logits(model), logits(ours(folders["packed"], backend=backend(OfNumbers))))


CASES = [("llama", "int4"), ("llama-even", "NVFP4")]
OTHERS = [
    *(("qwen3-moe", "int4"), ("qwen3-moe", "ct-nvfp4"), ("llama-even", "ct-mxfp4")),
    *(("llama-even", "awq"), ("llama-even", "gptq"), ("llama-even", "ct-w4a16")),
]
NIGHTLY = [pytest.param(*each, marks=pytest.mark.nightly) for each in OTHERS]


@pytest.mark.parametrize(("variant", "form"), [*CASES, *NIGHTLY])
def test_a_model_in_4_bits_is_the_model_of_its_numbers_in_any_chunk_and_batch(tmp_path, variant, form):
    """Products of numbers are the library's, which adds in another order."""
    write_checkpoint(variant, tmp_path, BF16)
    folder, options, launcher = tmp_path, {"quantization": "int4"}, RecordingLauncher()
    if form != "int4":
        folder, options = tmp_path / form, {}
        write_quantized(tmp_path, folder, FP4.get(form, form))
    model = ours(folder, "bfloat16", backend=backend(launcher=launcher), **options)
    assert isinstance(model.layers[0].mixer.qkv, CodedLinear)
    loop = PagedLoop(model, num_blocks=128)
    found = loop.prefill(loop.row(PROMPT))
    exact = logits(ours(folder, "bfloat16", backend=backend(OfNumbers), **options))
    assert (found - exact).norm() < 0.02 * exact.norm()
    assert torch.equal(loop.prefill(loop.row(PROMPT), chunk=7), found)
    first, second = loop.row(PROMPT), loop.row(random_tokens(30, seed=1))
    loop.prefill(second)
    second.token_ids.append(5)
    assert torch.equal(loop.step([(second, 1), (first, len(PROMPT))])[1:], found)
    listed = {kernel for kernel in kernels_for(model, BF16, loop.block_size) if "sampler" not in kernel.function}
    assert set(launcher.launched) <= listed
    assert {kernel.function for kernel in listed - set(launcher.launched)} <= {"expert_product"}
