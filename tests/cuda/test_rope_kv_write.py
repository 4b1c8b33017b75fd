"""rope_kv_write.cu against float64 and torch; padding and other slots are not written."""

import pytest
import torch

from paged_serve.workers.kernels.cuda.rotate import rotate_and_cache_kernel

from .checks_elementwise import check_rotation

BF16, FP16, FP8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("norms", [False, True, "own"])
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
    ],
)
def test_a_token_is_rotated_and_cached(
    scheduled, device, dtype, cached, heads, kv_heads, head_dim, block_size, tokens, norms
):
    check_rotation(scheduled, dtype, cached, head_dim, heads, kv_heads, block_size, tokens, norms, device)


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("norms", [False, True, "own"])
def test_threads_take_heads_in_turns_where_there_are_many(launcher, device, norms):
    assert rotate_and_cache_kernel(BF16, BF16, 256, 27, 5, 16).threads * 8 < (27 + 2 * 5) * 256
    check_rotation(launcher, BF16, BF16, 256, 27, 5, 16, 3, norms, device)
