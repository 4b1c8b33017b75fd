"""Norms, rotation, gates and codes of rows against float64; a row's bits against those of the row alone."""

import pytest
import torch

from paged_serve.workers.kernels.cuda.rotate import rotate_and_cache_kernel

from ..checks.checks_elementwise import (
    check_activation,
    check_capped_logits,
    check_layer_norm,
    check_quantized_rows,
    check_rms_norm,
    check_rotated_queries,
    check_rotation,
)

BF16, FP16, FP8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(("rows", "size"), [(1, 8), (3, 64), (2, 1000), (5, 2048), (2, 8200)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_row_has_unit_mean_square_times_the_weight(scheduled, device, dtype, rows, size):
    check_rms_norm(scheduled, dtype, rows, size, device)


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(("rows", "size"), [(1, 8), (3, 64), (2, 1000), (5, 768), (2, 8200)])
@pytest.mark.parametrize(("dtype", "has_bias"), [(torch.bfloat16, True), (torch.float16, False)])
def test_a_row_has_mean_0_and_variance_1_times_the_weight_plus_the_bias(scheduled, device, dtype, has_bias, rows, size):
    check_layer_norm(scheduled, dtype, rows, size, has_bias, device)


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(("rows", "size"), [(1, 8), (3, 264), (2, 4104)])
@pytest.mark.parametrize(
    ("activation", "dtype"), [("silu", torch.bfloat16), ("gelu_tanh", torch.float16), ("gelu_erf", torch.bfloat16)]
)
def test_each_element_is_the_activated_gate_times_its_other_half(launcher, device, activation, dtype, rows, size):
    check_activation(launcher, dtype, rows, size, activation, True, device)


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(("rows", "size"), [(1, 8), (2, 4104)])
@pytest.mark.parametrize(
    ("activation", "dtype"),
    [
        *(("gelu_tanh", torch.bfloat16), ("gelu_erf", torch.float16), ("relu", torch.bfloat16)),
        ("xielu", torch.float16),
    ],
)
def test_without_a_gate_each_element_is_activated(launcher, device, activation, dtype, rows, size):
    check_activation(launcher, dtype, rows, size, activation, False, device)


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(("rows", "columns", "cap"), [(1, 1, 30.0), (3, 513, 0.5), (2, 4100, 50.0)])
def test_logits_are_capped_by_a_tanh(launcher, device, rows, columns, cap):
    check_capped_logits(launcher, rows, columns, cap, device)


@pytest.mark.parametrize(("rows", "size"), [(3, 8), (4, 64), (4, 1000), (6, 2048), (4, 8200)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_row_is_quantized_in_units_of_its_largest_value(scheduled, device, dtype, rows, size):
    check_quantized_rows(scheduled, dtype, rows, size, device)


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("norms", [False, True, "own", "values, too"])
@pytest.mark.parametrize(
    ("dtype", "cached", "heads", "kv_heads", "head_dim", "block_size", "tokens"),
    [
        (BF16, BF16, 4, 2, 64, 16, 5),
        (FP16, FP16, 3, 3, 80, 16, 2),
        (BF16, FP8, 7, 1, 96, 32, 4),
        (BF16, BF16, 32, 8, 128, 16, 3),
        (FP16, FP8, 32, 8, 128, 16, 3),
        (BF16, FP8, 5, 2, 256, 64, 1),
        (FP16, FP16, 1, 1, 16, 16, 40),
        (BF16, BF16, 4, 1, 512, 16, 3),
    ],
)
def test_a_token_is_rotated_and_cached(
    scheduled, device, dtype, cached, heads, kv_heads, head_dim, block_size, tokens, norms
):
    check_rotation(scheduled, dtype, cached, head_dim, heads, kv_heads, block_size, tokens, norms, device)


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(("head_dim", "heads"), [(64, 4), (512, 3)])
def test_queries_without_keys_and_values_have_the_same_bits(scheduled, device, head_dim, heads):
    check_rotated_queries(scheduled, BF16, head_dim, heads, 5, device)


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("norms", [False, True, "own"])
def test_threads_take_heads_in_turns_where_there_are_many(launcher, device, norms):
    assert rotate_and_cache_kernel(BF16, BF16, 256, 27, 5, 16).threads * 8 < (27 + 2 * 5) * 256
    check_rotation(launcher, BF16, BF16, 256, 27, 5, 16, 3, norms, device)
