"""Models with recurrent layers: a row's bits depend on no other row, and on no division into steps."""

import pytest
import torch

from ..paged_loop import PagedLoop
from ..tiny_models.checkpoints import (
    ours,
    random_tokens,
    reference,
    reference_logits,
    transformers_model,
    write_checkpoint,
)

NIGHTLY = [
    pytest.param(name, marks=pytest.mark.nightly)
    for name in (
        "bamba",
        "mamba",
        "falcon-mamba",
        "falcon-h1-with-norms",
        "qwen3.5-moe",
        "olmo-hybrid",
        "kimi-linear",
        "bailing-hybrid",
    )
]
VARIANTS = ["mamba2", "minimax", "granite4", "qwen3-next", "nemotron-h", "jamba", "falcon-h1", *NIGHTLY]
LENGTH = 1100  # several blocks of every model


@pytest.fixture(scope="module", params=VARIANTS)
def model(request, tmp_path_factory, make_pool):
    if (pool := make_pool()) is None:
        pytest.skip("the kernels are not built")
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint(request.param, folder)
    return ours(folder, "bfloat16", pool=pool)


@pytest.fixture(scope="module")
def alone(model):
    """Each prompt's logits, computed alone in one chunk."""
    results = []
    for seed in range(4):
        loop = PagedLoop(model)
        results.append(loop.prefill(loop.row(random_tokens(LENGTH, seed))))
    return results


@pytest.mark.parametrize("chunk", [7, 64, 513])
def test_chunks_of_any_size_give_the_same_bits(model, alone, chunk):
    loop = PagedLoop(model, seed=chunk)
    assert loop.block_size < LENGTH / 2
    assert torch.equal(loop.prefill(loop.row(random_tokens(LENGTH)), chunk), alone[0])


def test_decode_steps_beside_chunks_of_other_rows_give_the_same_bits(model, alone):
    loop = PagedLoop(model, num_blocks=160)
    rows = [loop.row(random_tokens(LENGTH, seed)) for seed in range(4)]
    found = [loop.step([(row, LENGTH - 40 * index - 20)]) for index, row in enumerate(rows)]
    while work := [(row, 1) for row in rows if row.num_computed < LENGTH]:
        if len(work) > 1 and work[-1][0].num_computed + 9 < LENGTH:
            work[-1] = work[-1][0], 9
        for (row, _), logits in zip(work, loop.step(work).split([count for _, count in work]), strict=True):
            index = next(at for at, each in enumerate(rows) if each is row)
            found[index] = torch.cat([found[index], logits])
    for own, expected in zip(found, alone, strict=True):
        assert torch.equal(own, expected)


def test_a_row_that_starts_from_a_kept_state_has_the_same_bits(model, alone):
    loop = PagedLoop(model)
    num_blocks = LENGTH // loop.block_size
    num_shared = num_blocks * loop.block_size
    first = loop.row(random_tokens(LENGTH)[:num_shared])
    loop.prefill(first, chunk=100)
    last = loop.row(random_tokens(LENGTH), shared=first, shared_blocks=num_blocks)
    assert torch.equal(loop.prefill(last, chunk=50), alone[0][num_shared:])


def test_previous_contents_of_a_block_change_no_bit(model, alone):
    loop = PagedLoop(model)
    for tensor in (*loop.cache.keys, *loop.cache.values):
        tensor.fill_(torch.nan)
    for tensor in loop.cache.states:
        tensor.fill_(255)
    assert torch.equal(loop.prefill(loop.row(random_tokens(LENGTH)), chunk=300), alone[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("variant", ["qwen3-next", "jamba", pytest.param("nemotron-h", marks=pytest.mark.nightly)])
def test_half_precision_is_more_accurate_than_in_transformers_at_most_tokens(variant, dtype, tmp_path, make_pool):
    """By the median: a token for which rounding changes the experts has a large error, so may one prompt."""
    if (pool := make_pool()) is None:
        pytest.skip("the kernels are not built")
    prompts = [random_tokens(120, seed) for seed in range(4)]
    exact_model = reference(variant, tmp_path, dtype)
    exact = torch.cat([reference_logits(exact_model, prompt) for prompt in prompts])
    half_model = transformers_model(tmp_path, dtype)
    theirs = torch.cat([reference_logits(half_model, prompt) for prompt in prompts])
    loop = PagedLoop(ours(tmp_path, pool=pool))
    found = torch.cat([loop.prefill(loop.row(prompt)) for prompt in prompts])
    assert (found - exact).square().mean(1).median() < (theirs - exact).square().mean(1).median()


PACKED = ("granite4", "minimax", "qwen3.5", "nemotron-h", "jamba", "mamba-biased", "falcon-h1", "bailing-hybrid")


@pytest.mark.parametrize("quantization", ["auto", "int8", "int4"])
@pytest.mark.parametrize("variant", PACKED)
def test_packed_weights_of_an_earlier_start_have_the_same_bits(variant, quantization, tmp_path, make_pool):
    if (pool := make_pool()) is None:
        pytest.skip("the kernels are not built")
    write_checkpoint(variant, tmp_path, torch.bfloat16)
    found = []
    for folder in (None, tmp_path / "packed", tmp_path / "packed"):
        loop = PagedLoop(
            ours(tmp_path, pool=pool, quantization=quantization, packed_weights_dir=folder and str(folder))
        )
        found.append(loop.prefill(loop.row(random_tokens(60))))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
