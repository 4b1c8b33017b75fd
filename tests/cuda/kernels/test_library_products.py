"""The library's products of PRODUCT_ROWS rows on a GPU: what a row's bits may depend on. None of our kernels runs."""

import pytest
import torch

from paged_serve.workers.backends.cuda.products.fixed_rows import PRODUCT_ROWS, FixedRowsLinear
from paged_serve.workers.backends.cuda.products.fp8_linear import Fp8Linear
from paged_serve.workers.checkpoint.blocks.fp8_codes import fp8_codes, fp8_scales
from paged_serve.workers.checkpoint.weight_forms import Fp8Weight

SHAPES = [  # (inputs, outputs) of layers of published models, whole and divided among ranks
    *[(4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096), (4096, 128256)],  # Llama 3.1 8B
    *[(2048, 3072), (2048, 2048), (2048, 16384), (8192, 2048)],  # Llama 3.2 1B
    *[(896, 1152), (896, 896), (896, 9728), (4864, 896), (896, 151936)],  # Qwen2 0.5B
    *[(4096, 1536), (1024, 4096), (4096, 7168), (3584, 4096), (5120, 640), (640, 5120), (16384, 64), (64, 16384)],
]
FORMS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "fp8": torch.bfloat16}


@pytest.fixture
def only_on_a_gpu(device):
    if device != "cuda":
        pytest.skip("torch's products on a CPU are not those of a GPU")


def random_matrix(rows, columns, seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn((rows, columns), generator=generator, device="cuda")


def product(form, launcher, matrix):
    if form != "fp8":
        return FixedRowsLinear(matrix.to(FORMS[form]))
    scales = fp8_scales(matrix)
    return Fp8Linear(launcher, Fp8Weight(fp8_codes(matrix, scales), scales))


@pytest.mark.usefixtures("only_on_a_gpu")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_a_row_has_the_same_bits_at_every_place_and_beside_all_others(launcher, form, shape):
    inputs, outputs = shape
    multiply = product(form, launcher, random_matrix(outputs, inputs, seed=0))
    row = random_matrix(1, inputs, seed=1).to(FORMS[form])
    expected = multiply(row)
    assert torch.equal(multiply(row.expand(PRODUCT_ROWS, -1).contiguous()), expected.expand(PRODUCT_ROWS, -1))
    for seed in range(2, 5):
        others = random_matrix(3 * PRODUCT_ROWS, inputs, seed).to(FORMS[form])
        others[::7] = torch.nan
        places = torch.randperm(len(others), generator=torch.Generator().manual_seed(seed))[:40].to(others.device)
        others[places] = row
        assert torch.equal(multiply(others)[places], expected.expand(len(places), -1))
