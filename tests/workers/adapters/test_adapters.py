"""Rows with adapters: equal to merged weights, and to the bit whatever stands beside them."""

import random

import pytest
import torch

from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.kv.kv_cache import KVCache

from ..host_runners import new_host_runner
from ..invariance.planner import Odds, Planner, Request
from ..paged_loop import PagedLoop
from ..ranks import on_ranks
from ..tiny_models.checkpoints import random_tokens, write_checkpoint
from ..tiny_models.made_adapters import ALL_LINEAR, ATTENTION, make_adapter, write_merged
from ..tiny_models.tiny_model import VOCAB_SIZE, write_tiny_model
from .loaded import adapted, load, step_of

EVERYTHING = (*ALL_LINEAR, "embed_tokens", "lm_head")
UNDISTURBED = Odds(admit=1, chunk=1, whole_chunk=1, preempt=0, pause=0, share=0)
PROMPT = [7 * i % VOCAB_SIZE for i in range(40)]
FORMS = {
    "bfloat16": {},
    "float16": {"dtype": "float16"},
    "float32": {"dtype": "float32"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
}


def made(tmp_path, dtype=torch.bfloat16, **changes):
    """A tiny model and three adapters for it, of several ranks and targets."""
    base = tmp_path / "base"
    base.mkdir()
    write_tiny_model(base, dtype, **changes)
    return base, [
        make_adapter(tmp_path / "all", base, 1, rank=4, targets=EVERYTHING, rank_pattern={"q_proj": 7}),
        make_adapter(tmp_path / "attention", base, 2, rank=16, targets=ATTENTION, use_rslora=True),
        make_adapter(tmp_path / "down", base, 3, rank=1, targets=("mlp.down_proj",), scale=0.5),
    ]


@pytest.mark.parametrize("targets", [*((each,) for each in EVERYTHING), EVERYTHING], ids=lambda each: each[-1])
def test_logits_are_those_of_merged_weights(targets, tmp_path, pool):
    base = tmp_path / "base"
    base.mkdir()
    write_tiny_model(base, torch.float32)
    config = {"use_rslora": True, "rank_pattern": {"q_proj": 7}, "alpha_pattern": {"v_proj": 3.0}}
    adapter = make_adapter(tmp_path / "adapter", base, targets=targets, **config)
    model, merged = adapted(base, [adapter], pool), load(write_merged(tmp_path / "merged", base, adapter), pool)
    found, without = (PagedLoop(step_of(model, place)) for place in (1, 0))
    loop = PagedLoop(merged)
    expected = loop.prefill(loop.row(PROMPT))
    torch.testing.assert_close(found.prefill(found.row(PROMPT)), expected, rtol=0, atol=1e-4)
    assert not torch.allclose(without.prefill(without.row(PROMPT)), expected, rtol=0, atol=1e-2)


@pytest.mark.parametrize(
    "targets", [ALL_LINEAR, ("laurel.linear_left", "laurel.linear_right", "per_layer_projection"), ("embed_tokens",)]
)
def test_products_with_float32_results_take_adapters(targets, tmp_path, pool):
    """The residual streams of Gemma 3n are float32 in any dtype."""
    write_checkpoint("gemma3n", tmp_path / "base")
    adapter = make_adapter(tmp_path / "adapter", tmp_path / "base", targets=targets)
    merged = load(write_merged(tmp_path / "merged", tmp_path / "base", adapter), pool)
    model = adapted(tmp_path / "base", [adapter], pool)
    loops, prompt = [PagedLoop(each) for each in (step_of(model, 1), step_of(model, 0), merged)], random_tokens(20)
    found, without, expected = (loop.prefill(loop.row(prompt)) for loop in loops)
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
    assert (without - expected).abs().max() > 1e-2 * expected.abs().max()


def random_requests(rng):
    requests = []
    for index in range(10):
        prompt = tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.choice([1, 5, 20, 45])))
        options = {"prompt_logprobs": 2} if index % 4 == 1 else {}
        params = SamplingParams(temperature=rng.choice([0.0, 1.0]), logprobs=3, max_tokens=32, **options)
        requests.append(Request(prompt, params, rng.randrange(2**63), rng.randint(1, 9), adapter=index % 4))
    return requests


def play(model, requests, odds, seed=0, rows=8):
    runner = new_host_runner(model, KVCache.allocate(model.geometry, 160, 16), rows, 128)
    return Planner(runner, num_rows=rows, num_blocks=160, block_size=16, seed=seed).play(requests, odds)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_has_the_same_bytes_alone_and_beside_any_adapters(form, tmp_path, pool):
    """Rows of the base model have those of a model without adapters. Steps are recorded, chunked, and preempted."""
    if pool is None and form in ("int8", "int4", "float16"):
        pytest.skip("the kernels matter here")
    base, adapters = made(tmp_path, torch.float32 if form == "float32" else torch.bfloat16)
    model, plain = adapted(base, adapters, pool, **FORMS[form]), load(base, pool, **FORMS[form])
    rng = random.Random(form)
    requests = random_requests(rng)
    together = play(model, requests, Odds(share=1, preempt=0.05), seed=5)
    assert len({tuple(each.token_ids) for each in together}) > 4
    for request, found in zip(requests, together, strict=True):
        (alone,) = play(model if request.adapter else plain, [request], UNDISTURBED)
        assert found == alone


@pytest.mark.parametrize("form", ["bfloat16", "float32", "int8"])
def test_rows_of_large_steps_have_the_bytes_of_each_alone(form, tmp_path, make_pool):
    """Products of so many rows compute what adapters add to rows of small groups."""
    base, adapters = made(tmp_path, torch.float32 if form == "float32" else torch.bfloat16)
    model = adapted(base, adapters, make_pool(), **FORMS[form])
    params = SamplingParams(temperature=1.0, logprobs=3, max_tokens=8)
    places = [1, 2, 3] * 4 + [0] * 28
    requests = [Request((row + 1, 2 * row + 1), params, row, 8, adapter=place) for row, place in enumerate(places)]
    together = play(model, requests, Odds(admit=1, share=1), rows=40)
    for request, found in zip(requests[:14], together[:14], strict=True):
        assert [found] == play(model, [request], UNDISTURBED)


def test_drafts_change_no_byte_of_rows_with_adapters(tmp_path, pool):
    base, adapters = made(tmp_path)
    model = adapted(base, adapters, pool)
    requests = [
        Request((5, 6, 7, 5, 6, 7, 5, 6), SamplingParams(temperature=0.0, logprobs=1), 1, 12, adapter=place)
        for place in (1, 0, 2, 1)
    ]
    assert play(model, requests, Odds(admit=1, verify=0.7), seed=2) == play(model, requests, UNDISTURBED)


def prompt_and_answer(model):
    loop = PagedLoop(step_of(model, 1))
    row = loop.row(PROMPT)
    found = [loop.step([(row, 17)]), loop.step([(row, len(PROMPT) - 17)])]
    for _ in range(4):
        row.token_ids.append(int(found[-1][-1].argmax()))
        found.append(loop.step([(row, 1)]))
    return torch.cat(found)


@pytest.mark.parametrize("form", ["bfloat16", "float32", "int8"])
def test_ranks_together_have_the_bits_of_one(form, tmp_path):
    if not cpu.runnable_isas():
        pytest.skip("the kernels are not built")
    base, adapters = made(tmp_path, torch.float32 if form == "float32" else torch.bfloat16)
    pools = [cpu.Pool(cpu.best_library(), [-1]) for _ in range(4)]
    expected = prompt_and_answer(adapted(base, adapters, pools[0], **FORMS[form]))
    for size in (2, 4):

        def work(group):
            return prompt_and_answer(adapted(base, adapters, pools[group.rank], group, **FORMS[form]))

        for found in on_ranks(size, tmp_path / f"rendezvous-{size}", work):
            assert torch.equal(found, expected)
    for pool in pools:
        pool.close()


def test_every_instruction_set_and_number_of_threads_has_the_same_bits(tmp_path):
    if len(cpu.runnable_isas()) < 2:
        pytest.skip("at most one instruction set is built")
    base, adapters = made(tmp_path)
    results = []
    for isa in cpu.runnable_isas():
        for threads in (1, 3):
            pool = cpu.Pool(cpu.load_library(isa), [-1] * threads, summation="dot")
            results.append(prompt_and_answer(adapted(base, adapters, pool)))
            pool.close()
    assert all(torch.equal(found, results[0]) for found in results[1:])


FUSED = {
    "gpt-neox": ("query_key_value", "dense"),
    "falcon": ("query_key_value",),
    "phi3": ("qkv_proj", "gate_up_proj"),
    "bloom": ("query_key_value",),
    "minimax": ("qkv_proj", "output_gate", "out_proj"),
    "bailing-hybrid": ("f_proj", "g_proj", "dense"),  # gates of whole heads among them
    "diffllama-grouped": ATTENTION,  # rows that are read twice
}


@pytest.mark.parametrize("variant", FUSED)
def test_fused_projections_in_every_layout(variant, tmp_path, make_pool):
    """Matrices whose rows the kernels have in another order, or several times."""
    base, prompt = tmp_path / "base", [token % 100 for token in PROMPT]
    base.mkdir()
    write_checkpoint(variant, base, torch.float32)
    adapter = make_adapter(tmp_path / "adapter", base, targets=FUSED[variant])
    model = adapted(base, [adapter], make_pool())
    merged = load(write_merged(tmp_path / "merged", base, adapter), make_pool())
    loops = PagedLoop(step_of(model, 1)), PagedLoop(merged)
    found, expected = (loop.prefill(loop.row(prompt)) for loop in loops)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
