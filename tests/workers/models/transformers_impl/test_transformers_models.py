"""Models that run through the modules of transformers: its results, and our promises."""

import pytest
import torch

from ...paged_loop import PagedLoop
from ...ranks import on_ranks
from ...tiny_models.checkpoints import (
    ours,
    random_tokens,
    reference,
    reference_continues,
    reference_logits,
    transformers_model,
    write_checkpoint,
)
from ...tiny_models.quantized_checkpoints import write_quantized
from ...tiny_models.transformers_models import ARCHITECTURES, WIDE, is_of_transformers, write, write_without_family

PROMPT = random_tokens(150, vocab_size=WIDE["vocab_size"])


def some(*names):
    others = [pytest.param(name, marks=pytest.mark.nightly) for name in ARCHITECTURES if name not in names]
    return pytest.mark.parametrize("name", [*names, *others])


@pytest.fixture(scope="module")
def kernels(pools):
    if pools[-1] is None:
        pytest.skip("the kernels are not built")
    return pools[-1]


def loop_of(folder, pool, dtype="auto", **options):
    """A loop in KV groups as on a server, when the model has windows."""
    model = ours(folder, dtype, pool=pool, model_impl="transformers", **options)
    return PagedLoop(model, num_blocks=256, max_model_len=512)


def test_an_architecture_without_a_family_runs_through_transformers(tmp_path, kernels, monkeypatch):
    write_without_family(tmp_path, monkeypatch)
    assert is_of_transformers(ours(tmp_path, pool=kernels))


@pytest.mark.parametrize("num_tokens", [80, pytest.param(256, marks=pytest.mark.nightly)])
@some("Nemotron", "Apertus", "Ministral")
def test_float32_logits_and_greedy_tokens_are_those_of_transformers(name, num_tokens, tmp_path, kernels):
    model = write(name, tmp_path)
    expected = reference_logits(model, PROMPT)
    loop = loop_of(tmp_path, kernels)
    found = loop.prefill(loop.row(PROMPT), chunk=64)
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
    tokens = loop.greedy(PROMPT[:70], num_tokens, chunk=48)
    assert reference_continues(model, PROMPT[:70], tokens)
    assert len(set(tokens)) > 7, "text that repeats itself proves little"


@pytest.mark.parametrize("variant", ["qwen3", "llama-3.1", *(pytest.param("gemma3", marks=pytest.mark.nightly),)])
def test_a_model_that_is_native_too_has_equal_logits_and_tokens_both_ways(variant, tmp_path, pools):
    expected = reference_logits(reference(variant, tmp_path), random_tokens(150))
    for pool in pools:
        native, theirs = (
            PagedLoop(ours(tmp_path, pool=pool, model_impl=impl), max_model_len=512)
            for impl in ("native", "transformers")
        )
        assert not is_of_transformers(native.model)
        assert is_of_transformers(theirs.model)
        for loop in (native, theirs):
            length, chunk = (40, 24) if pool is None else (150, 64)  # torch takes token by token
            found = loop.prefill(loop.row(random_tokens(150)[:length]), chunk)
            assert (found - expected[:length]).abs().max() < 1e-4 * expected.abs().max()
    assert theirs.greedy(random_tokens(70), 80) == native.greedy(random_tokens(70), 80)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@some("Apertus", "Ministral")
def test_half_precision_is_nearly_as_near_to_float32_as_transformers_own_and_keeps_its_bits(
    name, dtype, tmp_path, kernels
):
    exact = reference_logits(write(name, tmp_path, dtype), PROMPT)
    theirs = (reference_logits(transformers_model(tmp_path, dtype), PROMPT) - exact).square().mean()
    loop = loop_of(tmp_path, kernels)
    assert loop.model.dtype == dtype
    found = loop.prefill(loop.row(PROMPT))
    assert (found - exact).square().mean() < 1.2 * theirs
    assert_equal_bits(loop, found)


@some("Arcee")
def test_float32_keeps_its_bits(name, tmp_path, kernels):
    write(name, tmp_path)
    loop = loop_of(tmp_path, kernels)
    assert_equal_bits(loop, loop.prefill(loop.row(PROMPT)))


def assert_equal_bits(loop, alone):
    """In chunks, token by token, after a prefix hit, and with other rows; `alone` has the logits of the row alone."""
    assert torch.equal(loop.prefill(loop.row(PROMPT), chunk=37), alone)
    first = loop.row(PROMPT)
    loop.step([(first, 100)])
    assert torch.equal(loop.prefill(first, chunk=1), alone[100:])
    if not any(kind.window for kind in loop.kinds):
        cached = loop.row(PROMPT, shared=first, shared_blocks=6)
        assert torch.equal(loop.prefill(cached), alone[96:])
    beside = [loop.row(random_tokens(count, seed=count, vocab_size=256)) for count in (1, 13, 60)]
    row = loop.row(PROMPT)
    found = [loop.step([(beside[0], 1), (beside[1], 13), (row, 90)])[14:]]
    found.append(loop.step([(beside[2], 60), (row, 60)])[60:])
    assert torch.equal(torch.cat(found), alone)


@pytest.mark.parametrize(
    "name",
    [
        "Ministral",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ARCHITECTURES
            if name not in ("Ministral", "HunYuanDenseV1", "BitNet")  # the last two have no plan
        ),
    ],
)
def test_two_ranks_give_the_bits_of_one(name, tmp_path, make_pool):
    """In float32: transformers sets torch's default dtype, which these threads share. In bfloat16 processes do it, in
    tests/end_to_end/models/test_transformers_models.py."""
    write(name, tmp_path)
    pools = [make_pool() for _ in range(3)]
    if None in pools:
        pytest.skip("the kernels are not built")

    def logits(group):
        loop = PagedLoop(
            ours(tmp_path, pool=pools[group.rank + group.size - 1], group=group, model_impl="transformers"),
            max_model_len=512,
        )
        return loop.prefill(loop.row(PROMPT), chunk=64)

    one = PagedLoop(ours(tmp_path, pool=pools[2], model_impl="transformers"), max_model_len=512)
    expected = one.prefill(one.row(PROMPT))
    for found in on_ranks(2, tmp_path / "meet", logits):
        assert torch.equal(found, expected)


def test_layers_with_windows_are_in_kv_groups_of_their_own(tmp_path, kernels):
    write("Ministral", tmp_path)
    loop = loop_of(tmp_path, kernels)
    assert loop.model.geometry.sliding_windows == (24, 0, 24)
    assert {kind.window for kind in loop.kinds} == {0, 24}


def test_weights_are_quantized_on_load(tmp_path, kernels):
    write("Arcee", tmp_path)
    exact, found = (
        loop.prefill(loop.row(PROMPT))
        for loop in (loop_of(tmp_path, kernels, quantization=kind) for kind in ("auto", "int8"))
    )
    assert 0 < (found - exact).norm() < 0.1 * exact.norm()


def test_a_tied_head_is_no_target_of_linear_modules(tmp_path, kernels):
    """The embedding of Gemma 3 is a class of its own, so the head holds a copy of the rows."""
    write_checkpoint("gemma3", tmp_path / "source")
    write_quantized(tmp_path / "source", tmp_path / "quantized", "ct-w4a16-channel")
    found, exact = (
        loop.prefill(loop.row(random_tokens(60)))
        for loop in (loop_of(tmp_path / name, kernels, "float32") for name in ("quantized", "quantized-float"))
    )
    assert torch.equal(found, exact)


def test_a_table_of_angles_depends_on_the_served_length_alone(tmp_path, kernels):
    """longrope changes its factors with the length of a text in transformers, and with the served length here."""
    factors = {"short_factor": [1.0] * 16, "long_factor": [4.0 + pair for pair in range(16)]}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64, **factors}
    write("Arcee", tmp_path, rope_parameters=rope)
    short = PagedLoop(ours(tmp_path, pool=kernels, max_model_len=64, model_impl="transformers"))
    long = PagedLoop(ours(tmp_path, pool=kernels, max_model_len=512, model_impl="transformers"))
    few = PROMPT[:40]
    assert not torch.equal(*(loop.prefill(loop.row(few)) for loop in (short, long)))
    before = long.prefill(long.row(few))
    long.prefill(long.row(PROMPT))
    assert torch.equal(long.prefill(long.row(few)), before)
    theirs = reference_logits(transformers_model(tmp_path), PROMPT)
    assert (long.prefill(long.row(PROMPT)) - theirs).abs().max() < 1e-4 * theirs.abs().max()
