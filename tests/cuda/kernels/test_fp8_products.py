"""e4m3 products with our CUDA kernels in the emulator and torch's product, which also exists on the CPU."""

import pytest
import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.backends.cuda.backend import CudaBackend
from paged_serve.workers.backends.cuda.products.fixed_rows import PRODUCT_ROWS
from paged_serve.workers.backends.cuda.products.fp8_linear import Fp8Linear
from paged_serve.workers.backends.torch.backend import TorchBackend
from paged_serve.workers.backends.torch.quantized_linear import TorchFp8Linear
from paged_serve.workers.checkpoint.blocks.fp8_codes import fp8_codes, fp8_scales
from paged_serve.workers.checkpoint.weight_forms import Fp8Weight
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.models.loading import load_model

from ...workers.paged_loop import PagedLoop
from ...workers.tiny_models.checkpoints import random_tokens
from ...workers.tiny_models.tiny_model import write_tiny_model
from ..emulated import EmulatorLauncher

BF16 = torch.bfloat16
OUTPUTS, INPUTS = 48, 160
# Of the sum of absolute products. An H100's tensor cores add products of 32 inputs with about 14 bits: up to 2^-14.8
# was seen (160 inputs), whereas torch's product on a CPU adds as float32 does.
ERRORS = {"cuda": 2.0**-14, "cpu": 2.0**-20}


def gaussian(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def weight():
    matrix = gaussian(OUTPUTS, INPUTS, seed=0) * torch.logspace(-2, 2, OUTPUTS).unsqueeze(1)
    scales = fp8_scales(matrix)
    return Fp8Weight(fp8_codes(matrix, scales), scales)


@pytest.mark.parametrize("biased", [False, True])
def test_an_fp8_product_is_the_float64_product_of_its_codes(launcher, device, weight, biased):
    x = (gaussian(9, INPUTS, seed=1) * torch.logspace(-3, 3, 9).unsqueeze(1)).to(BF16)
    x[4] = 0
    bias = gaussian(OUTPUTS, seed=2).to(BF16) if biased else None
    on_device = Fp8Weight(weight.codes.to(device), weight.scales.to(device))
    found = Fp8Linear(launcher, on_device, None if bias is None else bias.to(device))(x.to(device)).cpu()
    codes, scales = fp8_codes(x, fp8_scales(x)).double(), fp8_scales(x).double().unsqueeze(1)
    exact = codes @ weight.codes.double().t() * scales * weight.scales.double()
    added = codes.abs() @ weight.codes.double().abs().t() * scales * weight.scales.double()
    if bias is not None:
        exact += bias.double()
    off = (found.double() - exact).abs()
    assert (off <= 2.0**-8 * 1.01 * exact.abs() + ERRORS[device] * added).all()
    assert torch.equal(found[4], torch.zeros(OUTPUTS, dtype=BF16) if bias is None else bias)
    by_torch = TorchFp8Linear(weight, bias)(x)
    assert ((by_torch.double() - exact).abs() <= 2.0**-8 * 1.01 * exact.abs() + ERRORS["cpu"] * added).all()


@pytest.mark.parametrize("kind", [Fp8Linear, TorchFp8Linear])
def test_a_rows_bits_do_not_depend_on_other_rows(launcher, device, weight, kind):
    """The number of rows, a row's position and NaN in other rows do not matter."""
    on_device = Fp8Weight(weight.codes.to(device), weight.scales.to(device))
    product = Fp8Linear(launcher, on_device) if kind is Fp8Linear else TorchFp8Linear(on_device)
    x = gaussian(PRODUCT_ROWS + 70, INPUTS, seed=3).to(BF16).to(device)
    x[5] = torch.nan
    together = product(x).clone()
    assert together[5].isnan().all()
    for row in (0, 4, 6, 127, 128, len(x) - 1):
        assert torch.equal(product(x[row : row + 1].contiguous())[0], together[row])
        for first, last in ((max(0, row - 3), row + 1), (row, min(row + 80, len(x)))):
            assert torch.equal(product(x[first:last].contiguous())[row - first], together[row])


def load(folder, backend, quantization="auto", dtype="auto"):
    config = ModelConfig(device="cpu", quantization=quantization, dtype=dtype)
    return load_model(folder, config, TensorParallelGroup(), lambda done, total: None, backend=backend)


def on_emulator(arch="sm_90a"):
    return CudaBackend(EmulatorLauncher(), arch, 2, device="cpu")


def test_a_models_logits_are_as_accurate_as_plain_torchs(tmp_path):
    """The reference is the float model of the same codes; both round activations, and results of operations."""
    folder = write_tiny_model(tmp_path)

    def logits(model):
        loop = PagedLoop(model)
        return loop.prefill(loop.row(random_tokens(24)))

    reference = load(folder, TorchBackend(), "fp8")
    found, by_torch, plain = (
        logits(model)
        for model in (load(folder, on_emulator(), "fp8"), reference, load(folder, TorchBackend(), "auto", "float32"))
    )
    assert "14 matrices fp8" in reference.quantization["quantization"]
    assert 0 < (found - plain).norm() < 1.1 * (by_torch - plain).norm() < 0.25 * plain.norm()
    loop = PagedLoop(load(folder, on_emulator(), "fp8"), seed=1)
    row = loop.row(random_tokens(24))
    assert torch.equal(torch.cat([loop.step([(row, count)]) for count in (7, 1, 1, 15)]), found)


def test_a_device_or_dtype_without_fp8_products_is_refused(tmp_path):
    folder = write_tiny_model(tmp_path)
    with pytest.raises(ConfigError, match=r"needs sm_89 or later, but this GPU is sm_86; leave it out"):
        load(folder, on_emulator("sm_86"), "fp8")
    with pytest.raises(ConfigError, match=r"its products are bfloat16; use dtype=bfloat16"):
        load(folder, on_emulator(), "fp8", "float16")
    held = on_emulator("sm_80").accepted(Fp8Weight(torch.ones(16, 16).to(torch.float8_e4m3fn), torch.ones(16)), BF16)
    assert held.dtype == BF16


def test_sizes_that_the_library_does_not_support_stay_float():
    odd = Fp8Weight(torch.ones(24, 16).to(torch.float8_e4m3fn), torch.full((24,), 3.0))
    held = on_emulator().accepted(odd, BF16)
    assert torch.equal(held, torch.full((24, 16), 3.0, dtype=BF16))
