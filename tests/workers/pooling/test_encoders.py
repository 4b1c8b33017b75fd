"""Vectors and scores of encoders agree with transformers, and have the same bits however they are computed."""

import random

import numpy as np
import pytest
import torch

from paged_serve.protocol.messages.message import unpack_ids
from paged_serve.protocol.messages.pooling_params import PoolingParams
from paged_serve.workers.kv.budget import disentangled_bytes
from paged_serve.workers.models.encoders.disentangled import DisentangledAttention

from ..one_process import NotWaiting, OneProcess
from ..ranks import Ranks, SharedModel
from ..tiny_models.checkpoints import ours
from .kinds_of_encoders import ENCODERS, in_turn, tokens
from .references import add_modules, assert_near, hidden_states, label_scores, write_reference
from .serving import alone, answer_of, finish, new_process, request_of, vectors

WITH_TYPES = "BertModel", "NomicBertModel", "ElectraModel", "ErnieModel", "AlbertModel"
BITS = [("BertModel", torch.bfloat16), ("BertModel", torch.float32), ("ModernBertModel", torch.bfloat16)]
BITS += [("MPNetModel", torch.float16), *((name, torch.bfloat16) for name in ("GteModel", "ElectraModel"))]
BITS += [("EuroBertModel", torch.bfloat16), ("DebertaV2Model", torch.bfloat16), ("DebertaV2Model", torch.float32)]
BITS += [("Gemma3TextModel", torch.bfloat16)]
OWN_KIND = {"Gemma3TextModel": "last"}
WITH_EACH_KIND = "BertModel", "ModernBertModel", *OWN_KIND


@pytest.fixture(scope="module")
def modern_bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modern_bert")
    return folder, write_reference(folder, "ModernBertModel", ENCODERS["ModernBertModel"])


@pytest.mark.parametrize("has_each_kind", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["some", "each"])
@pytest.mark.parametrize("name", ENCODERS)
def test_each_kind_of_vector_agrees_with_transformers_hidden_states(name, has_each_kind, tmp_path, pools):
    expected_model = write_reference(tmp_path, name, ENCODERS[name])
    has_each = has_each_kind or name in WITH_EACH_KIND  # models have their pooling in common
    for pool in pools if has_each else pools[-1:]:
        prompt = tokens(60 if pool is None else 150)  # torch takes token by token
        hidden = hidden_states(expected_model, prompt)
        pooled = {"cls": hidden[0], "mean": hidden.mean(0), "last": hidden[-1]}
        kinds = ("mean",) if pool is None else pooled if has_each else ("cls",)
        for kind in kinds:
            model = ours(tmp_path, pool=pool, pooling="auto" if kind == OWN_KIND.get(name, "cls") else kind)
            assert model.pooling.spec.tasks == ("embed", "token_embed")
            assert_near(vectors(model, prompt), pooled[kind] / np.linalg.norm(pooled[kind]))
        assert_near(vectors(model, prompt, task="token_embed", use_activation=False), hidden)


@pytest.mark.parametrize(("name", "labels"), [("BertModel", 1), ("RobertaModel", 1), *((name, 3) for name in ENCODERS)])
def test_scores_of_labels_agree_with_transformers_and_use_token_types(name, labels, tmp_path, pools):
    options = {**ENCODERS[name], "num_labels": labels}
    expected_model = write_reference(tmp_path, name.replace("Model", "ForSequenceClassification"), options)
    prompt, border = tokens(30), 10
    types = torch.tensor([[int(place >= border) for place in range(len(prompt))]])
    inputs = {"token_type_ids": types} if name in WITH_TYPES else {}
    scores = label_scores(expected_model, prompt, **inputs)
    probabilities = 1 / (1 + np.exp(-scores)) if labels == 1 else np.exp(scores) / np.exp(scores).sum()
    for pool in pools:
        model = ours(tmp_path, pool=pool)
        pair = {"task": "classify", "second_text": border}
        assert_near(vectors(model, prompt, **pair, use_activation=False), scores)
        assert_near(vectors(model, prompt, **pair), probabilities)
        if name in WITH_TYPES:
            assert not np.allclose(vectors(model, prompt, task="classify", use_activation=False), scores, rtol=1e-3)


@pytest.mark.parametrize("name", in_turn([name for name in ENCODERS if name != "Gemma3TextModel"], 0))
def test_scores_of_each_token_agree_with_transformers(name, tmp_path, pools):
    options = {**ENCODERS[name], "num_labels": 3}
    expected_model = write_reference(tmp_path, name.replace("Model", "ForTokenClassification"), options)
    prompt = tokens(60)
    scores = label_scores(expected_model, prompt)
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    for pool in pools:
        model = ours(tmp_path, pool=pool)
        assert model.pooling.spec.tasks == ("token_classify",)
        assert_near(vectors(model, prompt, task="token_classify", use_activation=False), scores)
        assert_near(vectors(model, prompt, task="token_classify"), probabilities)


@pytest.mark.parametrize(("family", "kind"), [("ModernBert", "mean"), ("EuroBert", "mean"), ("EuroBert", "bos")])
def test_scores_are_pooled_as_config_json_says(family, kind, tmp_path, make_pool):
    options = {**ENCODERS[f"{family}Model"], "classifier_pooling": kind, "num_labels": 2}
    expected = label_scores(write_reference(tmp_path, f"{family}ForSequenceClassification", options), tokens(50))
    if family == "EuroBert":  # as in its published files
        file = tmp_path / "config.json"
        file.write_text(file.read_text().replace("classifier_pooling", "clf_pooling"))
    assert_near(vectors(ours(tmp_path, pool=make_pool()), tokens(50), task="classify", use_activation=False), expected)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 18, 31, 32, 33, 34, 150])
def test_a_local_layer_attends_to_half_its_window_on_each_side(length, modern_bert, pools):
    folder, expected_model = modern_bert
    prompt = tokens(150)[:length]
    expected = hidden_states(expected_model, prompt)
    for pool in pools:
        found = vectors(ours(folder, pool=pool), prompt, task="token_embed", use_activation=False)
        assert_near(found, expected)


@pytest.mark.parametrize("feed_forward", ["relu", "gated-gelu"])
def test_embeddings_of_t5_encoders_agree_with_transformers(feed_forward, tmp_path, pools):
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 3, "num_heads": 4}
    theirs = write_reference(tmp_path, "T5EncoderModel", {**sizes, "feed_forward_proj": feed_forward})
    expected = hidden_states(theirs, tokens(150))
    for pool in pools:
        found = vectors(ours(tmp_path, pool=pool), tokens(150), task="token_embed", use_activation=False)
        assert_near(found, expected)


def test_embeddings_of_electra_base_are_not_projected(tmp_path, make_pool):
    options = {"max_position_embeddings": 256, "embedding_size": 64}
    expected = hidden_states(write_reference(tmp_path, "ElectraModel", options), tokens(40))
    assert_near(vectors(ours(tmp_path, pool=make_pool()), tokens(40), use_activation=False), expected[0])


@pytest.mark.parametrize("name", ["BertModel", "DebertaV2Model", "AlbertModel"])
def test_an_encoder_from_packed_weights_has_the_same_bits(name, tmp_path, make_pool):
    folder = tmp_path / "model"
    write_reference(folder, name, ENCODERS[name])
    if (pool := make_pool()) is None:
        pytest.skip("the kernels are not built")
    plain = vectors(ours(folder, pool=pool), tokens(40))
    for _ in range(2):
        kept = ours(folder, pool=pool, packed_weights_dir=str(tmp_path))
        assert vectors(kept, tokens(40)).tobytes() == plain.tobytes()
    assert len(list(tmp_path.glob("*.packed"))) == 1
    quantized = vectors(ours(folder, pool=pool, quantization="int8"), tokens(40))
    assert 0.99 < float(np.sum(quantized * plain)) < 1.0


def test_half_precision_is_as_accurate_as_in_transformers(tmp_path, make_pool):
    exact = write_reference(tmp_path, "BertModel", ENCODERS["BertModel"], torch.bfloat16)
    half = type(exact).from_pretrained(tmp_path, dtype=torch.bfloat16, attn_implementation="eager").eval()
    prompt = tokens(100)
    expected = hidden_states(exact, prompt)
    with torch.no_grad():
        theirs = half(torch.tensor([prompt])).last_hidden_state[0].float().numpy()
    found = vectors(ours(tmp_path, pool=make_pool()), prompt, task="token_embed", use_activation=False)
    assert np.square(found - expected).mean() < 1.2 * np.square(theirs - expected).mean()


def computed_together(model, items: list, rng: random.Random, kind: type[OneProcess] = OneProcess) -> list:
    batched = rng.choice((90, 128, 256))
    process = new_process(model, kind, num_blocks=rng.choice((16, 64)), max_num_batched_tokens=batched)
    for index, item in enumerate(items, start=1):
        process.add(request_of(index, item))
        for _ in range(rng.randint(0, 3)):
            rng.choice((process.plan, process.execute, process.apply, process.read))()
        if rng.random() < 0.15:
            process.replace_workers()
    finish(process)
    assert process.engine.kv_cache.pool.num_cached == 0
    return [answer_of(process, index) for index in range(1, len(items) + 1)]


def random_items(rng: random.Random) -> list:
    """Random items, some with a common prefix; none may affect another."""
    common, items = tokens(40), []
    for _ in range(rng.randint(4, 10)):
        prompt = [*common[: rng.choice((0, 20, 40))], *(rng.randrange(3, 190) for _ in range(rng.randint(1, 45)))]
        second = rng.choice((None, rng.randrange(len(prompt))))
        items.append((prompt, PoolingParams(rng.choice(("embed", "token_embed")), second_text=second)))
    return items


@pytest.mark.parametrize(("name", "dtype"), BITS)
def test_a_vector_has_the_same_bits_alone_and_in_any_batch(name, dtype, tmp_path, pool, row_variant):
    write_reference(tmp_path, name, ENCODERS[name], dtype)
    model = ours(tmp_path, pool=pool, pooling="mean")
    for seed in range(1 if pool is None else 6):
        rng = random.Random(f"encoder {seed}")
        items = random_items(rng)
        found = computed_together(model, items, rng, rng.choice((OneProcess, NotWaiting)))
        assert found == [alone(model, item) for item in items], seed


@pytest.mark.parametrize(("name", "dtype"), BITS)
def test_two_ranks_have_the_bits_of_one(name, dtype, tmp_path, make_pool):
    write_reference(tmp_path, name, ENCODERS[name], dtype)
    if (first := make_pool()) is None:
        pytest.skip("the kernels are not built")
    pools, rng = [first, make_pool()], random.Random(3)
    items = random_items(rng)
    expected = [alone(ours(tmp_path, pool=first), item) for item in items]
    ranks = Ranks(2, tmp_path / "rendezvous")
    try:
        shared = SharedModel(ranks, lambda group: ours(tmp_path, group=group, pool=pools[group.rank]))
        found = computed_together(shared, items, rng)
    finally:
        ranks.close()
    assert found == expected


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["BertModel", "MPNetModel"])
def test_embeddings_of_full_width_have_the_signs_of_a_padded_batch(name, tmp_path, make_pool):
    """As sentence-transformers computes them: texts of a batch padded to the longest, a masked mean, length 1."""
    sizes = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 12}
    theirs = write_reference(tmp_path, name, {**sizes, "max_position_embeddings": 258})
    add_modules(tmp_path, "mean_tokens", "Normalize")
    rng = random.Random(1)
    prompts = [[rng.randrange(3, 190) for _ in range(rng.randint(16, 256))] for _ in range(32)]
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(prompt) for prompt in prompts], batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(prompt)) for prompt in prompts], batch_first=True)
    with torch.no_grad():
        hidden = theirs(padded, attention_mask=mask).last_hidden_state
    mean = (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
    expected = torch.nn.functional.normalize(mean).numpy()
    model = ours(tmp_path, pool=make_pool())
    found = np.concatenate([vectors(model, prompt) for prompt in prompts])
    assert_near(found, expected)
    assert (np.sign(found) == np.sign(expected)).all()


def test_chunks_of_a_step_are_whole_prompts(tmp_path, make_pool):
    write_reference(tmp_path, "BertModel", ENCODERS["BertModel"])
    process = new_process(ours(tmp_path, pool=make_pool()), max_num_batched_tokens=64)
    lengths = [30, 30, 64, 5]
    for index, length in enumerate(lengths, start=1):
        process.add(request_of(index, (tokens(80)[:length], PoolingParams())))
    plans = []
    while not process.is_idle:
        process.plan()
        plans += process.plans
        for act in (process.execute, process.apply, process.read):
            act()
    assert [chunk.num_tokens for plan in plans for chunk in plan.chunks] == lengths
    assert not any(unpack_ids(plan.decode_joins) for plan in plans)


def test_the_tables_of_disentangled_attention_fit_into_what_is_reserved_for_them(tmp_path, monkeypatch):
    write_reference(tmp_path, "DebertaV2Model", ENCODERS["DebertaV2Model"])
    model, taken, of_pairs = ours(tmp_path), [], DisentangledAttention._pairs

    def recorded(self, step, of_queries, of_keys):
        pairs = of_pairs(self, step, of_queries, of_keys)
        taken.append(pairs.nbytes + of_queries.nbytes + of_keys.nbytes)
        return pairs

    monkeypatch.setattr(DisentangledAttention, "_pairs", recorded)
    vectors(model, tokens(200))
    reserved = disentangled_bytes(model.geometry, 200, 1)
    assert reserved / 4 < max(taken) < reserved
    assert disentangled_bytes(model.geometry, 200, 2) == reserved // 2
