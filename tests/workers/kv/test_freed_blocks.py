"""Blocks behind windows and before attention chunks go to other rows while a row runs: no bit changes, and the row does
not read them again."""

from functools import partial

import pytest
import torch

from paged_serve.workers.backends.torch.backend import TorchBackend
from paged_serve.workers.geometry.layer_options import AttentionMask

from ..paged_loop import PagedLoop
from ..ranks import on_ranks
from ..tiny_models.checkpoints import (
    ours,
    random_tokens,
    reference,
    reference_continues,
    reference_logits,
    write_checkpoint,
)

LENGTH, MAX_LEN = 145, 512  # tokens: 3 to 6 windows
MIXED, HALVES, SLIDING = "gemma3-one-layer-fills-up-a-group", "gemma3", "mistral-sliding"
CHUNKED = "llama4"
FEWEST_BLOCKS = {"gemma4": 66}  # of three rows


def spoil(cache, block):
    """Write values that a failed row may leave behind."""
    if cache.groups.areas:  # all bits are 1, a NaN in tensors of any shape
        cache.blocks[0][block] = -1
        return
    for layer, tensors in enumerate(zip(cache.keys, cache.values, strict=True)):
        for tensor in tensors if cache.scales_of(layer) is None else cache.scales_of(layer):
            tensor[block] = torch.nan


@pytest.fixture(
    scope="module",
    params=[
        (MIXED, "bfloat16", "kernels"),
        (MIXED, "float32", "torch"),
        (HALVES, "float16", "kernels"),
        (SLIDING, "float32", "kernels"),
        (MIXED, "bfloat16", "int8"),
        (SLIDING, "float16", "int8"),
        ("gemma4", "bfloat16", "kernels"),
        ("gemma4", "float32", "torch"),
        ("gemma3n", "float16", "int8"),
        (CHUNKED, "bfloat16", "kernels"),
        (CHUNKED, "float32", "torch"),
        (CHUNKED, "float16", "int8"),
    ],
    ids="-".join,
)
def case(request):
    return request.param


@pytest.fixture(scope="module")
def home(case, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint(case[0], folder)
    return folder


@pytest.fixture(scope="module")
def new_loop(case, home, make_pool, row_variant):
    """Makes loops over the model; with a maximum length they have KV groups."""
    _, dtype, way = case
    pool = None if way == "torch" else make_pool()
    if way != "torch" and pool is None:
        pytest.skip("the kernels are not built")
    return partial(PagedLoop, ours(home, dtype, pool=pool), dtype=torch.int8 if way == "int8" else None)


@pytest.fixture(scope="module")
def alone(new_loop):
    """Each prompt's logits, computed alone in one chunk, without freed blocks."""
    found = []
    for seed in range(3):
        loop = new_loop()
        found.append(loop.prefill(loop.row(random_tokens(LENGTH, seed))))
    return found


@pytest.mark.parametrize("chunk", [1, 7, 33, 100])
def test_contents_of_freed_blocks_change_no_bit(new_loop, alone, chunk):
    """Of decode steps, 40 are enough: they free blocks, too, and their number is what takes time."""
    loop = new_loop(max_model_len=MAX_LEN, on_freed=spoil)
    row = loop.row(random_tokens(LENGTH))
    found = [loop.step([(row, LENGTH - 40)])] if chunk == 1 else []
    found.append(loop.prefill(row, chunk))
    assert torch.equal(torch.cat(found), alone[0])
    in_use = 64 - len(loop.free)
    first_seen = [AttentionMask(kind.window, kind.attention_chunk).first_seen(LENGTH) for kind in loop.kinds]
    assert in_use == sum(-(-LENGTH // 16) - first // 16 for first in first_seen)


def test_rows_that_take_each_others_freed_blocks_change_no_bit(case, new_loop, alone):
    loop = new_loop(max_model_len=MAX_LEN, num_blocks=FEWEST_BLOCKS.get(case[0], 54))
    rows = [loop.row(random_tokens(LENGTH, seed)) for seed in range(3)]
    found = [loop.step([(row, count) for row in rows]).split(count) for count in (1, 30, 1, 1, 7, 40, 1, 20, 21, 23)]
    for row in range(3):
        assert torch.equal(torch.cat([step[row] for step in found]), alone[row])


def test_a_prefix_hit_needs_no_more_than_the_last_window_or_attention_chunk(new_loop, alone):
    loop = new_loop(max_model_len=MAX_LEN)
    first = loop.row(random_tokens(LENGTH))
    for count in (100, 12):
        loop.step([(first, count)])
    second = loop.row(random_tokens(LENGTH), shared=first, shared_blocks=7)
    assert any(block > len(loop.cache.keys[0]) for table in second.tables for block in table), "nothing was freed"
    assert torch.equal(loop.prefill(second), alone[0][7 * 16 :])


@pytest.mark.parametrize("variant", [MIXED, SLIDING, CHUNKED])
def test_plain_torch_reads_no_freed_block_either(variant, tmp_path):
    """Its bits depend on how a prompt is chunked, but not on other rows' blocks."""
    write_checkpoint(variant, tmp_path)
    model = ours(tmp_path, backend=TorchBackend())
    loops = PagedLoop(model), PagedLoop(model, max_model_len=MAX_LEN, on_freed=spoil)
    for first, chunk in ((LENGTH - 40, 1), (40, 40)):
        expected, found = [], []
        for loop, parts in zip(loops, (expected, found), strict=True):
            row = loop.row(random_tokens(LENGTH))
            parts += loop.step([(row, first)]), loop.prefill(row, chunk)
        assert torch.equal(torch.cat(found), torch.cat(expected))


@pytest.mark.parametrize("variant", [MIXED, HALVES, SLIDING])
def test_text_of_many_windows_agrees_with_transformers(variant, tmp_path, pools):
    expected_model = reference(variant, tmp_path)
    whole = random_tokens(300)
    for pool in pools:
        prompt, num_tokens = (whole[:LENGTH], 5) if pool is None else (whole, 30)  # torch takes token by token
        logits = reference_logits(expected_model, prompt)
        model = ours(tmp_path, pool=pool)
        loop = PagedLoop(model, max_model_len=MAX_LEN, on_freed=spoil)
        assert (loop.prefill(loop.row(prompt), chunk=64) - logits).abs().max() < 1e-4 * logits.abs().max()
        text = PagedLoop(model, max_model_len=MAX_LEN, on_freed=spoil).greedy(prompt, num_tokens, chunk=64)
        assert reference_continues(expected_model, prompt, text)


def test_ranks_together_have_the_bits_of_one(tmp_path, make_pool):
    write_checkpoint(MIXED, tmp_path)

    def work(group):
        loop = PagedLoop(ours(tmp_path, "bfloat16", group=group, pool=make_pool()), max_model_len=MAX_LEN)
        return loop.prefill(loop.row(random_tokens(LENGTH)), chunk=20)

    model = ours(tmp_path, "bfloat16", pool=make_pool())
    loop = PagedLoop(model)
    expected = loop.prefill(loop.row(random_tokens(LENGTH)))
    for found in on_ranks(2, tmp_path / "rendezvous", work):
        assert torch.equal(found, expected)
