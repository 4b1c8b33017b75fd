"""Vectors of decoders agree with transformers' hidden states, and have the same bits however they are computed."""

import random

import numpy as np
import pytest
import torch

from paged_serve.protocol.messages.pooling_params import Pooled, PoolingParams
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..one_process import NotWaiting, OneProcess
from ..ranks import Ranks, SharedModel
from ..tiny_models.checkpoints import ours, random_tokens
from ..tiny_models.tiny_model import VOCAB_SIZE, write_tiny_model
from .references import add_modules, assert_near, hidden_states, label_scores, write_reference
from .serving import alone, answer_of, finish, new_process, request_of, vectors

DECODERS = {
    "LlamaForCausalLM": {},
    "Qwen3ForCausalLM": {"head_dim": 32, "tie_word_embeddings": True},
    "MistralModel": {"sliding_window": None, "head_dim": 32},
    "Qwen2Model": {},
    "GPT2Model": {},
}


@pytest.mark.parametrize("name", DECODERS)
def test_each_kind_of_vector_agrees_with_transformers_hidden_states(name, tmp_path, pools):
    expected_model = write_reference(tmp_path, name, DECODERS[name])
    prompt = random_tokens(70)
    hidden = hidden_states(expected_model, prompt)
    pooled = {"last": hidden[-1], "mean": hidden.mean(0), "cls": hidden[0]}
    for pool in pools:
        for kind, expected in pooled.items():
            model = ours(tmp_path, pool=pool, pooling=kind)
            assert model.pooling.spec.tasks == (("generate",) if "LM" in name else ()) + ("embed", "token_embed")
            assert_near(vectors(model, prompt), expected / np.linalg.norm(expected))
            assert_near(vectors(model, prompt, use_activation=False), expected)
            cut = expected[:20] / np.linalg.norm(expected[:20])
            assert_near(vectors(model, prompt, dimensions=20), cut)
        of_tokens = vectors(model, prompt, task="token_embed")
        assert_near(of_tokens, hidden / np.linalg.norm(hidden, axis=1, keepdims=True))


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("name", ["LlamaForSequenceClassification", "Qwen3ForSequenceClassification"])
def test_scores_of_labels_agree_with_transformers(name, labels, tmp_path, pools):
    expected_model = write_reference(tmp_path, name, {"num_labels": labels, "head_dim": 32})
    prompt = random_tokens(50)
    scores = label_scores(expected_model, prompt)
    probabilities = 1 / (1 + np.exp(-scores)) if labels == 1 else np.exp(scores) / np.exp(scores).sum()
    for pool in pools:
        model = ours(tmp_path, pool=pool)
        assert model.pooling.spec.tasks == ("classify",)
        assert_near(vectors(model, prompt, task="classify", use_activation=False), scores)
        assert_near(vectors(model, prompt, task="classify"), probabilities)


@pytest.mark.parametrize(("modules", "is_unit"), [(("Normalize",), True), ((), False)])
def test_the_files_of_sentence_transformers_choose_tokens_and_length(modules, is_unit, tmp_path):
    expected_model = write_reference(tmp_path, "Qwen2Model", {})
    add_modules(tmp_path, "mean_tokens", *modules)
    prompt = random_tokens(30)
    expected = hidden_states(expected_model, prompt).mean(0)
    found = vectors(ours(tmp_path), prompt)
    assert_near(found, expected / np.linalg.norm(expected) if is_unit else expected)


def random_items(rng: random.Random, tasks: tuple[str, ...]) -> list:
    common = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(20, 60))]
    items = []
    for _ in range(rng.randint(4, 10)):
        prompt = [
            *(common if rng.random() < 0.7 else ()),
            *(rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 40))),
        ]
        task = rng.choice(tasks)
        if task == "generate":
            items.append(
                (prompt, SamplingParams(max_tokens=rng.randint(1, 12), seed=rng.randrange(99), ignore_eos=True))
            )
        else:
            items.append((prompt, PoolingParams(task, rng.choice((None, 16)), use_activation=rng.random() < 0.7)))
    return items


def computed_together(model, items: list, rng: random.Random, kind: type[OneProcess]) -> list:
    """The results of items that are computed in chunks and batches, with prefix hits, preemption and lost workers."""
    batched = rng.choice((9, 16, 50))
    process = new_process(
        model,
        kind,
        num_blocks=rng.choice((12, 16, 64)),
        max_num_batched_tokens=batched,
        pipeline_depth=rng.choice((1, 2)),
    )
    for index, item in enumerate(items, start=1):
        process.add(request_of(index, item))
        for _ in range(rng.randint(0, 3)):
            rng.choice((process.plan, process.execute, process.apply, process.read))()
        if rng.random() < 0.1:
            process.replace_workers()
    if rng.random() < 0.5 and process.engine.scheduler.running:
        process.engine.scheduler.preempt(rng.choice(process.engine.scheduler.running))
    finish(process)
    return [answer_of(process, index) for index in range(1, len(items) + 1)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("pooling", ["last", "mean", "cls"])
def test_a_vector_has_the_same_bits_alone_and_in_any_batch(pooling, dtype, tmp_path, pool, row_variant):
    write_tiny_model(tmp_path, dtype)
    model = ours(tmp_path, pool=pool, pooling=pooling)
    for seed in range(1 if pool is None else 6):
        rng = random.Random(f"{pooling} {seed}")
        items = random_items(rng, ("generate", "embed", "embed", "token_embed"))
        found = computed_together(model, items, rng, rng.choice((OneProcess, NotWaiting)))
        assert found == [alone(model, item) for item in items], seed


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_two_ranks_have_the_bits_of_one(pooling, tmp_path, make_pool):
    write_tiny_model(tmp_path)
    if (first := make_pool()) is None:
        pytest.skip("the kernels are not built")
    pools, rng = [first, make_pool()], random.Random(1)
    items = random_items(rng, ("embed", "token_embed"))
    expected = [alone(ours(tmp_path, pool=first, pooling=pooling), item) for item in items]
    ranks = Ranks(2, tmp_path / "rendezvous")
    try:
        shared = SharedModel(ranks, lambda group: ours(tmp_path, group=group, pool=pools[group.rank], pooling=pooling))
        found = computed_together(shared, items, rng, OneProcess)
    finally:
        ranks.close()
    assert found == expected


def test_a_text_row_is_not_affected_by_an_aborted_pooling_row(tmp_path):
    write_tiny_model(tmp_path)
    model = ours(tmp_path)
    process = new_process(model, max_num_batched_tokens=16)
    process.add(request_of(1, ([5] * 60, PoolingParams())))
    for act in (process.plan, process.execute, process.apply):
        act()
    process.abort(1)
    text = ([7] * 20, SamplingParams(max_tokens=4, seed=1))
    process.add(request_of(2, text))
    finish(process)
    assert answer_of(process, 2) == alone(model, text)


def test_a_prompt_may_be_as_long_as_the_context(tmp_path):
    write_tiny_model(tmp_path)
    model = ours(tmp_path)
    found = alone(model, ([7] * 256, PoolingParams()))
    assert isinstance(found, Pooled)
    assert (found.rows, found.columns) == (1, 64)
