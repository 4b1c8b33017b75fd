"""The kernels of latent attention against float64, and a token's bits in any chunk, batch and shape of blocks."""

import pytest
import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.backends.cuda.latent import check_latent_sizes
from paged_serve.workers.geometry.layer_options import Latent
from paged_serve.workers.kernels.cuda.latent.latent_attention import SHAPES, LatentHeadsShape, shape_for

from ..checks.checks_latent import BF16, FP16, ODD, USUAL, check_cached_latents, check_latent, check_rotated_heads
from ..checks.latent_case import NARROW, WIDE, LatentBatch, LatentRequest, batch

DEEPSEEK = Latent(1536, 512, 128, 64, 128)
EDGES = (1, 2, 15, 16, 17, 63, 64, 65, 511, 512, 513, 575, 1023, 1024, 1025)


def test_the_kernels_of_latent_attention_are_correct(launcher, device):
    check_latent(launcher, device)


@pytest.mark.nightly
def test_the_kernels_of_latent_attention_are_race_free_in_every_schedule(scheduled, device):
    check_latent(scheduled, device)


def test_a_token_has_the_same_bits_in_a_decode_step_any_chunk_and_any_batch(launcher):
    request = LatentRequest.random(USUAL, 90, 500, seed=3)
    expected = LatentBatch(USUAL, [request]).run(launcher)
    others = batch(USUAL, [(3, 70), (1, 600)]).requests
    for start, stop in ((0, 33), (33, 34), (34, 90)):
        for shape in (WIDE, NARROW):
            found = LatentBatch(USUAL, [*others, request.chunk(start, stop)], seed=5).run(launcher, shape)
            assert torch.equal(found[4:], expected[start:stop])
    together = batch(USUAL, [(1, 600), (1, 1100)])
    assert torch.equal(together.run(launcher, max_slots=16), together.run(launcher))


@pytest.mark.nightly
@pytest.mark.parametrize("heads", [USUAL, ODD, LatentHeadsShape(BF16, 16, 576, 512, 64)])
def test_lengths_at_the_edges_of_blocks_tiles_and_splits_match_the_oracle(launcher, heads):
    for edges in (EDGES[:8], EDGES[8:]):
        cases = batch(heads, [(1, length - 1) for length in edges])
        found = cases.run(launcher)
        cases.assert_right(found)
        assert torch.equal(found, cases.run(launcher, NARROW, split_tokens=0))


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_rows_of_published_sizes_are_cached_and_rotated(launcher, device, dtype):
    check_cached_latents(launcher, dtype, DEEPSEEK, 7, device)
    check_rotated_heads(launcher, dtype, 16, DEEPSEEK, 5, device)


def test_each_architecture_has_a_shape_that_fits_its_shared_memory():
    heads = LatentHeadsShape.of(BF16, 128, DEEPSEEK, 16)
    assert [shape_for(heads, arch) for arch in ("sm_90a", "sm_80", "sm_89")] == [SHAPES[0], SHAPES[1], SHAPES[3]]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (Latent(0, 40, 24, 16, 20), "kv_lora_rank=40 must be a multiple of 16"),
        (Latent(0, 32, 24, 24, 20), "qk_rope_head_dim=24 must be a multiple of 16"),
        (Latent(0, 32, 20, 16, 20), "qk_nope_head_dim=20 must be a multiple of 8"),
        (Latent(0, 32, 24, 16, 21), "v_head_dim=21 must be a multiple of 2"),
        (Latent(0, 992, 24, 32, 20), "needs more shared memory than sm_89 has"),
    ],
)
def test_sizes_that_the_kernels_do_not_support_are_refused_by_name(sizes, message):
    with pytest.raises(ConfigError, match=message):
        check_latent_sizes(BF16, sizes, "sm_89")
