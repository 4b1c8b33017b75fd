"""`--quantization int8|int4`: the error, the layers that stay float; codes do not depend on ranks or threads."""

import pytest
import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.backends.torch.backend import SingleRowsBackend
from paged_serve.workers.backends.torch.quantized_linear import (
    TorchFp8Linear,
    TorchInt8Linear,
    exact_products,
    packed_pairs,
    quantize_rows,
    unpacked_pairs,
)
from paged_serve.workers.checkpoint.blocks.fp8_codes import fp8_codes, fp8_scales
from paged_serve.workers.checkpoint.weight_forms import Fp8Weight, Int8Weight
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.layers.embedding import TorchTable
from paged_serve.workers.quantization.on_load import int4_weight, int8_codes, int8_scales

from ..paged_loop import PagedLoop
from ..ranks import on_ranks
from ..tiny_models.checkpoints import ours, random_tokens, write_checkpoint
from ..tiny_models.quantized_checkpoints import dequantized

PROMPT = random_tokens(60)


def gaussian(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def relative_error(found, exact):
    return float((found - exact).norm() / exact.norm())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    write_checkpoint("qwen3", folder, torch.bfloat16)
    return folder


def test_an_int8_code_is_the_nearest():
    matrix = gaussian(40, 96)
    matrix[3] = 0
    scales = int8_scales(matrix)
    codes = int8_codes(matrix, scales)
    assert codes.abs().amax(1).tolist() == [0 if row == 3 else 127 for row in range(40)]
    error = (codes * scales.unsqueeze(1) - matrix).abs()
    assert bool((error <= 0.501 * scales.unsqueeze(1)).all())


def test_an_fp8_code_is_the_nearest_and_no_row_of_zeros_is_divided_by_zero():
    matrix = gaussian(40, 96).bfloat16() * 100
    matrix[3] = 0
    scales = fp8_scales(matrix)
    codes = fp8_codes(matrix, scales).float()
    assert codes.abs().amax(1).tolist() == [0 if row == 3 else 448 for row in range(40)]
    error = (codes * scales.unsqueeze(1) - matrix).abs()
    # The precision of 4 bits, or of the smallest step.
    nearest = torch.maximum(matrix.abs() * 2.0**-4, 2.0**-10 * scales.unsqueeze(1))
    assert bool((error <= 1.001 * nearest).all())


@pytest.mark.parametrize(("group_size", "bound"), [(32, 0.0825), (64, 0.094), (128, 0.106)])
def test_int4_scales_are_found_by_search(group_size, bound):
    """The errors are of Gaussian weights. If the largest weight always became 7, they would be 9.7, 11.2 and 12.6 %."""
    matrix = gaussian(256, 1024)
    error = relative_error(int4_weight(matrix, group_size).dequantized(), matrix)
    assert 0.9 * bound < error < bound


def test_no_group_is_worse_than_with_its_largest_weight_at_minus_eight():
    matrix = gaussian(64, 256).bfloat16().float()
    groups = matrix.view(64, 8, 32)
    largest = groups.gather(2, groups.abs().argmax(2, keepdim=True))
    step = (largest / -8).bfloat16().float()
    plain = ((groups / step).round().clamp(-8, 7) * step - groups).square().sum(2)
    found = (int4_weight(matrix, 32).dequantized().view(64, 8, 32) - groups).square().sum(2)
    assert float((found - plain).max()) < 0.02 * float(plain.mean())
    assert found.mean() < 0.93 * plain.mean()


def test_groups_of_zeros_or_of_one_value_are_exact():
    matrix = torch.zeros(16, 64)
    matrix[1] = 0.75
    matrix[2, 5] = -3.0
    assert torch.equal(int4_weight(matrix, 32).dequantized(), matrix)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_and_blocks_of_rows_change_no_code(threads):
    matrix = gaussian(1025, 2048).bfloat16()
    torch.set_num_threads(1)
    expected = int4_weight(matrix, 32)
    rows = torch.tensor([0, 500, 1024])
    torch.set_num_threads(threads)
    again, some = int4_weight(matrix, 32), int4_weight(matrix[rows], 32)
    torch.set_num_threads(1)
    assert torch.equal(again.codes, expected.codes)
    assert torch.equal(again.scales, expected.scales)
    assert torch.equal(some.codes, expected.codes[rows])
    assert torch.equal(some.scales, expected.scales[rows])


def test_integer_sums_are_exact_at_their_largest():
    """The sum of all products is odd and so large that float32 cannot represent it."""
    codes, weight = torch.full((3, 5001), -127.0), torch.full((7, 5001), -127, dtype=torch.int8)
    assert exact_products(codes, weight).tolist() == [[127 * 127 * 5001] * 7] * 3


def test_w8a8_is_the_float64_product_of_its_codes():
    weight, x = gaussian(48, 1500), gaussian(9, 1500, seed=1)
    scales = int8_scales(weight)
    codes, bias = int8_codes(weight, scales), gaussian(48, seed=2)
    linear = TorchInt8Linear(Int8Weight(codes, scales), bias)
    row_codes, row_scales = quantize_rows(x)
    assert int(row_codes.abs().max()) == 127
    exact = row_codes.double() @ codes.double().t() * row_scales.double().unsqueeze(1) * scales.double()
    assert relative_error(linear(x).double(), exact + bias.double()) < 1e-7
    assert relative_error(linear(x), x @ weight.t() + bias) < 0.015
    assert linear(torch.zeros(2, 1500)).tolist() == [bias.tolist()] * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_quantized_products_rows_keep_their_bits(dtype, row_variant):
    """The torch backend: sums of int8 codes are exact in any order; other forms are multiplied row by row."""
    matrix, x = gaussian(96, 1056), gaussian(65, 1056, seed=3).to(dtype)
    scales = int8_scales(matrix)
    int8 = Int8Weight(int8_codes(matrix, scales), scales)
    fp8_scale = fp8_scales(matrix)
    fp8 = Fp8Weight(fp8_codes(matrix, fp8_scale), fp8_scale)
    for weight in (int8, int4_weight(matrix, 32), fp8):
        product = SingleRowsBackend().linear(weight)
        whole = product(x)
        assert whole.dtype == dtype
        for rows in (slice(7, 8), slice(0, 3), slice(20, 65)):
            assert torch.equal(product(x[rows]), whole[rows])


def test_packed_pairs_of_codes_unpack_to_the_same_codes():
    codes = torch.randint(0, 16, (6, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert packed_pairs(codes).shape == (6, 32)
    assert torch.equal(unpacked_pairs(packed_pairs(codes)), codes)


def logits(folder, **options):
    loop = PagedLoop(ours(folder, **options))
    return loop.prefill(loop.row(PROMPT), chunk=25)


@pytest.mark.parametrize(("kind", "bound"), [("int8", 0.05), ("fp8", 0.2), ("int4", 0.35)])
def test_a_quantized_models_logits_are_near_the_float_models(kind, bound, folder):
    exact = logits(folder, dtype="float32")
    assert 0.1 * bound < relative_error(logits(folder, dtype="float32", quantization=kind), exact) < bound


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_the_quantized_matrices_are_reported(kind, folder):
    options = {"quantization": kind, "quantize_lm_head": False}
    whole, facts = ours(folder).weights_bytes, ours(folder, **options).quantization
    outputs = 3 * (128 + 64 + 64 + 64 + 96 + 96 + 64)
    before = 2 * 3 * (64 * (128 + 64 + 64 + 96 + 96) + 128 * 64 + 96 * 64)
    after = before // 2 + 4 * outputs if kind == "int8" else before // 4 + 2 * before // 2 // 32
    assert facts["quantization"] == ("21 matrices int8" if kind == "int8" else "21 matrices int4 g32")
    assert facts["quantized_outputs"] == str(outputs)
    assert facts["quantized_bytes"] == f"{before} before, {after} after"
    assert facts["quantization_error"].startswith("relative RMS 0.00" if kind == "int8" else "relative RMS 0.08")
    assert "worst (model.layers." in facts["quantization_error"]
    assert ours(folder).quantization == {}
    assert ours(folder, **options).weights_bytes == whole - before + after


def test_matrices_without_a_whole_number_of_groups_stay_float(folder):
    options = {"quantization_group_size": 64, "quantize_lm_head": False}
    facts = ours(folder, quantization="int4", **options).quantization
    assert facts["quantization"] == "3 matrices float, 18 matrices int4 g64"  # the down projections have 96 inputs


def test_the_output_head_becomes_int8_while_the_embedding_stays(folder):
    plain, with_head = ours(folder, quantization="int8", quantize_lm_head=False), ours(folder, quantization="int8")
    assert isinstance(plain.output_head.share, TorchTable)
    assert isinstance(with_head.output_head.share, TorchInt8Linear)
    assert torch.equal(with_head.embedding.table.weight, plain.embedding.table.weight)
    expected = logits(folder, quantization="int8", quantize_lm_head=False)
    assert 1e-4 < relative_error(logits(folder, quantization="int8"), expected) < 0.02
    assert 1e-4 < relative_error(logits(folder, quantize_lm_head=True), logits(folder)) < 0.02
    assert with_head.quantization["quantization"] == "22 matrices int8"
    head_alone = ours(folder, quantize_lm_head=True).quantization["quantization"]
    assert head_alone == "21 matrices float, 1 matrix int8"


def test_the_output_head_stays_float_with_fp8_unless_requested(folder):
    assert ours(folder, quantization="fp8").quantization["quantization"] == "21 matrices fp8"
    with_head = ours(folder, quantization="fp8", quantize_lm_head=True)
    assert with_head.quantization["quantization"] == "22 matrices fp8"
    assert isinstance(with_head.output_head.share, TorchFp8Linear)


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
def test_two_ranks_match_one_and_keep_a_rows_bits(kind, tmp_path, row_variant):
    """int8 on torch matches only approximately: each rank's share of a token's activations has its own scale."""
    write_checkpoint("llama-even", tmp_path / "model", torch.bfloat16)
    options = {"quantization": kind, "quantize_lm_head": kind == "int8"}
    loop = PagedLoop(ours(tmp_path / "model", "float32", **options))
    expected = loop.prefill(loop.row(PROMPT))

    def work(group):
        model, results = ours(tmp_path / "model", "float32", group=group, **options), []
        for chunk in (1000, 13):
            loop = PagedLoop(model, seed=chunk)
            results.append(loop.prefill(loop.row(PROMPT), chunk))
        return *results, dequantized(model.layers[1].feed_forward.down.share)

    ranks = on_ranks(2, tmp_path / "rendezvous", work)
    for whole, chunked, _ in ranks:
        assert torch.equal(whole, chunked)
        assert relative_error(whole, expected) < {"int8": 0.06, "fp8": 0.2, "int4": 1e-5}[kind]
    shares = [share for *_, share in ranks]
    assert torch.equal(torch.cat(shares, dim=1), dequantized(loop.model.layers[1].feed_forward.down))


def test_a_group_that_two_ranks_would_share_is_refused(folder):
    with pytest.raises(ConfigError, match=r"down_proj is quantized in groups of 32 inputs.* divides 96 inputs"):
        ours(folder, group=TensorParallelGroup(0, 2), quantization="int4")
