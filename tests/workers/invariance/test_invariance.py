"""The contract: a row's bits depend only on that row. Every comparison here is torch.equal.

Both backends of a CPU server keep it: the CPU kernels, and torch one row at a time ("torch" here). Plain torch keeps it
only on some processors; `row_variant` makes it violate the contract on every processor.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.nn import functional

from paged_serve.workers.backends.cpu.backend import CpuBackend
from paged_serve.workers.backends.torch.backend import SingleRowsBackend, TorchBackend
from paged_serve.workers.geometry.model_options import Activation
from paged_serve.workers.layers.activation import activated, capped
from paged_serve.workers.layers.norm import RMSNorm
from paged_serve.workers.layers.rotary import rotate

from ..paged_loop import PagedLoop
from ..tiny_models.checkpoints import ours, random_tokens, write_checkpoint

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
BATCH_SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 13, 17, 33, 64, 127, 300]


def assert_rows_keep_their_bits(operation, rows, thread_counts=(1, 3)):
    """Assert that `operation` has the same bits for each row in any selection and order, on any number of threads.

    Torch's products have the same bits only for the same number of threads, which a server does not change.
    """
    generator = torch.Generator().manual_seed(5)
    whole = operation(rows).clone()
    for row in range(0, len(rows), 7):  # even ones and odd ones
        assert torch.equal(operation(rows[row : row + 1]), whole[row : row + 1]), f"row {row} alone"
    for threads in thread_counts:
        torch.set_num_threads(threads)
        for size in (size for size in BATCH_SIZES if size <= len(rows)):
            chosen = torch.randperm(len(rows), generator=generator)[:size]
            assert torch.equal(operation(rows[chosen]), whole[chosen]), f"{size} rows on {threads} threads"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_alignment_of_weights_changes_no_bit_without_kernels(dtype):
    """Without a copy it would in float32: tensors in a mapped file or on the heap have arbitrary alignment."""
    weight, bias, x = product_case(dtype, 256, 640)
    expected = SingleRowsBackend().linear(weight, bias)(x)
    for offset in (1, 2, 4, 8):
        memory = torch.empty(weight.numel() + 8, dtype=dtype)
        moved = memory[offset : offset + weight.numel()].view(weight.shape).copy_(weight)
        assert torch.equal(SingleRowsBackend().linear(moved, bias)(x), expected)
    assert torch.equal(SingleRowsBackend().linear(weight.t().contiguous().t(), bias)(x), expected)


def product_case(dtype, columns, rows):
    """A weight [rows, columns], a bias, and 320 inputs."""
    generator = torch.Generator().manual_seed(1)
    weight = (torch.randn(rows, columns, generator=generator) / columns**0.5).to(dtype)
    bias = torch.randn(rows, generator=generator).to(dtype)
    return weight, bias, torch.randn(320, columns, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        *(pytest.param(*shape, marks=pytest.mark.long_in_software) for shape in ((256, 640), (640, 256))),
        pytest.param(1024, 3072, marks=pytest.mark.nightly),
        *[(96, 144), (64, 48), (40, 16)],
    ],
)
def test_a_products_rows_keep_their_bits_on_every_instruction_set(dtype, columns, rows, cpu_pools):
    weight, bias, x = product_case(dtype, columns, rows)
    for pool in cpu_pools:
        assert_rows_keep_their_bits(CpuBackend(pool).linear(weight, bias), x, thread_counts=(1,))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("columns", "rows"), [(256, 640), (1024, 1536), (96, 144)])
def test_a_products_rows_keep_their_bits_without_kernels(dtype, columns, rows, row_variant):
    weight, bias, x = product_case(dtype, columns, rows)
    assert_rows_keep_their_bits(SingleRowsBackend().linear(weight, bias), x, thread_counts=(1,))
    with pytest.raises(AssertionError, match=r"alone|rows on"):
        assert_rows_keep_their_bits(TorchBackend().linear(weight, bias), x, thread_counts=(1,))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [16, 33, 64, 100, 1024])
def test_norm_activation_rotation_and_embedding_keep_a_rows_bits(dtype, size):
    generator = torch.Generator().manual_seed(2)
    count = 80 if size == 1024 else 320  # torch divides 32,768 elements or more among threads
    x = (3 * torch.randn(count, 2 * size, generator=generator)).to(dtype)
    norm = RMSNorm(torch.randn(2 * size, generator=generator).to(dtype), 1e-6)
    assert_rows_keep_their_bits(norm, x)
    for kind in ("silu", "gelu", "gelu_tanh", "relu"):
        for is_gated in (True, False):
            assert_rows_keep_their_bits(partial(activated, activation=Activation(kind, is_gated)), x)
    assert_rows_keep_their_bits(lambda rows: capped(rows.clone(), 3.0), x.float())
    angle = torch.randn(count, 1, size, generator=generator)
    both = torch.cat([x.float(), angle.flatten(1)], 1)
    assert_rows_keep_their_bits(
        lambda rows: rotate(
            rows[:, : 2 * size].to(dtype).unsqueeze(1),
            rows[:, 2 * size :].unsqueeze(1).cos(),
            rows[:, 2 * size :].unsqueeze(1).sin(),
        ),
        both,
    )


def test_torchs_own_silu_is_not_invariant():
    """This is the reason why silu is computed with exp; if the test fails one day, torch's silu can be used."""
    x = 4 * torch.randn(100_003, generator=torch.Generator().manual_seed(3))
    whole = functional.silu(x)
    assert any(
        not torch.equal(functional.silu(x[start : start + 33].clone()), whole[start : start + 33])
        for start in range(2000)
    )


@pytest.fixture(
    scope="module",
    params=[
        ("qwen2-upper-layers-slide", "float32", "torch"),
        ("llama-multi-query", "bfloat16", "torch"),
        ("qwen3", "float16", "kernels"),
        ("llama-multi-query", "float32", "kernels"),
        ("llama-3.1", "bfloat16", "kernels"),
        ("qwen2-upper-layers-slide", "bfloat16", "kernels"),
        ("qwen3", "bfloat16", "kernels"),
        ("opt-untied-gelu", "bfloat16", "kernels"),
        ("gpt2", "float16", "kernels"),
        ("gemma3", "bfloat16", "kernels"),
        *(pytest.param((variant, "bfloat16", "torch"), marks=pytest.mark.nightly) for variant in ("gpt2", "granite")),
        ("gemma2", "bfloat16", "kernels"),
        ("bloom", "float16", "kernels"),
        ("bloom", "float32", "torch"),
        ("gpt-neox", "bfloat16", "kernels"),
        *(
            pytest.param((variant, "bfloat16", way), marks=pytest.mark.nightly)
            for variant in (
                "gptj",
                "falcon-two-norms",
                "stablelm",
                "cohere2",
                "olmo-clipped",
                "olmo2",
                "glm4",
                "exaone4",
            )
            for way in ("kernels", "torch")
        ),
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
def load(case, home, make_pool, row_variant):
    """Loads the model, or another one in `folder`; kernels run on the given number of threads."""
    _, dtype, way = case
    if way == "kernels" and make_pool() is None:
        pytest.skip("the kernels are not built")
    return lambda threads=1, folder=home: ours(folder, dtype, pool=make_pool(threads) if way == "kernels" else None)


@pytest.fixture(scope="module")
def model(load):
    return load()


PROMPT_TOKENS = 145


@pytest.fixture(scope="module")
def alone(model):
    """Each prompt's logits, computed alone in one chunk: [prompts][tokens, vocab]."""
    torch.set_num_threads(1)
    results = []
    for seed in range(6):
        loop = PagedLoop(model)
        results.append(loop.prefill(loop.row(random_tokens(PROMPT_TOKENS, seed))))
    return results


@pytest.mark.parametrize("chunk", [1, 7, 16, 33, 64, 100])
def test_chunks_of_any_size_and_decode_steps_give_the_same_bits(model, alone, chunk):
    """Of decode steps, 40 are enough: they cross three blocks, and their number is what takes time."""
    loop = PagedLoop(model, seed=chunk)
    row = loop.row(random_tokens(PROMPT_TOKENS))
    found = [loop.step([(row, PROMPT_TOKENS - 40)])] if chunk == 1 else []
    found.append(loop.prefill(row, chunk))
    assert torch.equal(torch.cat(found), alone[0])


def test_plain_torch_is_not_invariant(home, row_variant):
    """Otherwise no test here could fail where torch computes."""
    model = ours(home, "float32", backend=TorchBackend())
    found = [(loop := PagedLoop(model)).prefill(loop.row(random_tokens(60)), chunk) for chunk in (60, 7)]
    assert not torch.equal(*found)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.nightly)])
def test_other_rows_of_any_kind_change_no_bit(model, alone, rounds):
    """Random steps: rows compute one or several tokens in random batches until all are complete."""
    generator = torch.Generator().manual_seed(4)
    for round_number in range(rounds):
        loop = PagedLoop(model, num_blocks=80, seed=round_number)
        rows = [loop.row(random_tokens(PROMPT_TOKENS, seed)) for seed in range(6)]
        while unfinished := [row for row in rows if row.num_computed < PROMPT_TOKENS]:
            draw = torch.rand(len(unfinished), 2, generator=generator).tolist()
            work = [
                (row, 1 if kind < 0.3 else 1 + int(size * 60))
                for row, (kind, size) in zip(unfinished, draw, strict=True)
            ]
            work = [(row, min(count, PROMPT_TOKENS - row.num_computed)) for row, count in work]
            work = [pair for pair, (kind, _) in zip(work, draw, strict=True) if kind < 0.8] or work
            work.sort(key=lambda pair: pair[1] > 1)
            starts = [(row, row.num_computed, count) for row, count in work]
            parts = loop.step(work).split([count for _, count in work])
            for (row, start, count), found in zip(starts, parts, strict=True):
                assert torch.equal(found, alone[rows.index(row)][start : start + count])


def test_a_row_that_continues_from_cached_blocks_has_the_same_bits(model, alone):
    loop = PagedLoop(model)
    first = loop.row(random_tokens(PROMPT_TOKENS))
    loop.prefill(first)
    for cached_blocks in (1, 4, 9):
        continued = loop.row(random_tokens(PROMPT_TOKENS), shared=first, shared_blocks=cached_blocks)
        assert torch.equal(loop.prefill(continued, chunk=50), alone[0][cached_blocks * 16 :])


@pytest.mark.parametrize("block_size", [32, 64])
def test_the_size_of_blocks_and_their_ids_change_no_bit(model, alone, block_size):
    loop = PagedLoop(model, num_blocks=24, block_size=block_size, seed=9)
    rows = [loop.row(random_tokens(PROMPT_TOKENS, seed)) for seed in range(2)]
    logits = loop.step([(row, PROMPT_TOKENS) for row in rows])
    assert torch.equal(logits, torch.cat(alone[:2]))


@pytest.mark.parametrize("threads", [2, 3])
def test_the_number_of_threads_changes_no_bit(case, load, alone, threads):
    if case[2] == "torch":
        pytest.skip("torch's products have the same bits only for the same number of threads")
    loop = PagedLoop(load(threads))
    rows = [loop.row(random_tokens(PROMPT_TOKENS, seed)) for seed in range(2)]
    found = [loop.step([(row, count) for row in rows]).split(count) for count in (100, 37, 1, 1, 1, 5)]
    for row in range(2):
        assert torch.equal(torch.cat([step[row] for step in found]), alone[row])


def test_logits_of_some_tokens_are_those_of_all(model):
    hidden = torch.randn(40, model.geometry.hidden_size, generator=torch.Generator().manual_seed(6)).to(model.dtype)
    assert_rows_keep_their_bits(model.logits, hidden, thread_counts=(1,))


def test_a_row_whose_arithmetic_fails_affects_no_other_row(load, model):
    poisoned = 7
    sound_model = load()
    failing_model = replace(sound_model, embedding=NanEmbedding(sound_model.embedding, poisoned))
    prompt = [token if token != poisoned else 8 for token in random_tokens(40, 1)]
    loop = PagedLoop(failing_model)
    sound, failing = loop.row(prompt), loop.row([poisoned] * 40)
    beside = [loop.step([(sound, count), (failing, count)])[:count] for count in (30, 1, 9)]
    loop = PagedLoop(model)
    expected = loop.prefill(loop.row(prompt))
    assert torch.equal(torch.cat(beside), expected)
    assert expected.isfinite().all()


class NanEmbedding:
    """Like `embedding`, but with NaN for one token."""

    def __init__(self, embedding, token):
        self._embedding, self._token = embedding, token

    def __call__(self, token_ids):
        hidden = self._embedding(token_ids)
        hidden[token_ids == self._token] = torch.nan
        return hidden


def test_previous_contents_of_a_block_change_no_bit(model, alone):
    """Blocks are reused without clearing, even those of a row whose arithmetic overflowed."""
    loop = PagedLoop(model)
    for tensor in (*loop.cache.keys, *loop.cache.values):
        tensor.fill_(float("nan"))
    assert torch.equal(loop.prefill(loop.row(random_tokens(PROMPT_TOKENS)), chunk=40), alone[0])
