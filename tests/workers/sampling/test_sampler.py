"""The sampler against the plain oracle, parameter by parameter and in random mixtures, and its distribution."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_serve.protocol.messages.samplers import Dry, Xtc
from paged_serve.protocol.messages.sampling_params import SamplingParams

from . import sampling_oracle as oracle
from .sampling_bench import EOS, OUTPUT, PROMPT, WAYS, Bench, one, random_logits, samplers

every_way = pytest.fixture(autouse=True, params=WAYS)(samplers)

PARAMETERS = {
    "greedy": SamplingParams(temperature=0.0),
    "plain": SamplingParams(),
    "cold": SamplingParams(temperature=0.3),
    "top_k": SamplingParams(top_k=7),
    "top_k one": SamplingParams(top_k=1),
    "top_k beyond the vocabulary": SamplingParams(top_k=10_000),
    "top_p": SamplingParams(top_p=0.83),
    "top_p tiny": SamplingParams(top_p=1e-6),
    "min_p": SamplingParams(min_p=0.07),
    "all three": SamplingParams(top_k=40, top_p=0.91, min_p=0.011, temperature=1.7),
    "repetition": SamplingParams(repetition_penalty=1.7),
    "frequency": SamplingParams(frequency_penalty=-1.3),
    "presence": SamplingParams(presence_penalty=1.9, temperature=0.0),
    "logit_bias": SamplingParams(logit_bias={4: 5.5, 11: -300.0, 30: 2.25}),
    "allowed": SamplingParams(allowed_token_ids=(3, 12, 31)),
    "bad words": SamplingParams(bad_words_token_ids=((9, 9, 1), (4,), (9, 8, 2), (5, 9, 9, 6))),
    "min_tokens": SamplingParams(min_tokens=5, stop_token_ids=(10, 11)),
    "xtc": SamplingParams(xtc=Xtc(probability=1.0, threshold=0.03)),
    "xtc at times": SamplingParams(xtc=Xtc(probability=0.4, threshold=0.11), temperature=1.6),
    "xtc of everything": SamplingParams(xtc=Xtc(probability=1.0, threshold=0.0), top_k=9),
    "xtc of what is cut": SamplingParams(xtc=Xtc(probability=1.0, threshold=0.02), top_k=40, top_p=0.9, min_p=0.01),
    "xtc of two at most": SamplingParams(xtc=Xtc(probability=1.0, threshold=0.5), temperature=0.4),
    "dry": SamplingParams(dry=Dry(multiplier=3.0, allowed_length=1)),
    "dry of the end": SamplingParams(dry=Dry(multiplier=9.5, allowed_length=1, penalty_last_n=3), temperature=0.0),
    "dry off": SamplingParams(dry=Dry(multiplier=9.5, penalty_last_n=0)),
    "min_tokens reached": SamplingParams(min_tokens=4, stop_token_ids=(10, 11)),
}


@pytest.mark.parametrize("vocab_size", [33, 256, 700])
@pytest.mark.parametrize("name", PARAMETERS)
def test_each_parameter_agrees_with_the_oracle(name, vocab_size):
    params = PARAMETERS[name]
    bench = Bench(vocab_size)
    for case in range(6):
        logits = random_logits(case, vocab_size)
        bench.put(3, params, seed=case)
        token = bench.sample(logits[None].copy(), [3]).token_ids[0]
        assert token == oracle.sample(logits, params, case, PROMPT, OUTPUT, EOS)


token = st.integers(0, 32)
tokens = st.lists(token, max_size=12)
mixtures = st.builds(
    SamplingParams,
    temperature=st.one_of(st.just(0.0), st.floats(0.05, 2.0)),
    top_p=st.one_of(st.just(1.0), st.floats(0.013, 0.997)),
    top_k=st.integers(-1, 40),
    min_p=st.one_of(st.just(0.0), st.floats(0.0013, 0.7)),
    presence_penalty=st.one_of(st.just(0.0), st.floats(-2, 2)),
    frequency_penalty=st.one_of(st.just(0.0), st.floats(-2, 2)),
    repetition_penalty=st.one_of(st.just(1.0), st.floats(0.4, 2.5)),
    min_tokens=st.integers(0, 12),
    stop_token_ids=tokens.map(tuple),
    bad_words_token_ids=st.lists(st.lists(token, min_size=1, max_size=3).map(tuple), max_size=4).map(tuple),
    logit_bias=st.one_of(st.none(), st.dictionaries(token, st.floats(-120, 120), max_size=4)),
    allowed_token_ids=st.one_of(st.none(), st.lists(token, min_size=1, max_size=20).map(tuple)),
    xtc=st.one_of(st.none(), st.builds(Xtc, probability=st.floats(0, 1), threshold=st.floats(0.0013, 0.6))),
    dry=st.one_of(
        st.none(),
        st.builds(
            Dry,
            multiplier=st.floats(0, 9),
            base=st.floats(1, 3),
            allowed_length=st.integers(1, 4),
            penalty_last_n=st.integers(-1, 20),
            breaker_token_ids=tokens.map(tuple),
        ),
    ),
)
requests = st.tuples(mixtures, st.integers(0, 2**63 - 1), tokens.filter(bool), tokens, st.integers(0, 2**16))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(requests, min_size=1, max_size=6))
def test_random_mixtures_agree_with_the_oracle_row_by_row(batch):
    bench = Bench(33)
    logits = np.stack([random_logits(case, 33) for *_, case in batch])
    for row, (params, seed, prompt, output, _) in enumerate(batch):
        bench.put(row, params, seed, prompt, output)
    sampled = bench.sample(logits.copy(), list(range(len(batch))))
    assert not len(sampled.bad)
    for row, (params, seed, prompt, output, _) in enumerate(batch):
        expected = oracle.sample(logits[row], params, seed, prompt, output, EOS)
        assert (row in sampled.failures) == (expected is None)
        assert sampled.token_ids[row] == (expected or 0)


@pytest.mark.parametrize("vocab_size", [33, 256, 1000, 4099])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(vocab_size):
    params = [
        SamplingParams(logprobs=5),
        SamplingParams(temperature=0.0, logprobs=0),
        SamplingParams(top_p=0.9, logprobs=-1),
        SamplingParams(top_k=5, top_p=0.8),
        SamplingParams(min_p=0.02, top_p=0.99, logprobs=3),
        SamplingParams(top_k=20, repetition_penalty=1.4, logprobs=2),
        SamplingParams(top_k=20, frequency_penalty=1.4, logprob_token_ids=(7, 0, 7, 32)),
        SamplingParams(xtc=Xtc(probability=0.9, threshold=0.01), logprobs=2),
        SamplingParams(),
    ]
    rng = np.random.default_rng(vocab_size)
    for _ in range(12):
        count = int(rng.integers(2, 40))
        bench = Bench(vocab_size, num_rows=64)
        logits = rng.normal(0, 3, (count, vocab_size)).astype(np.float32)
        rows = rng.permutation(64)[:count].tolist()
        for row in rows:
            bench.put(row, params[row % len(params)], seed=row)
        together = bench.sample(logits.copy(), rows)
        for index, row in enumerate(rows):
            alone = bench.sample(logits[index : index + 1].copy(), [row])
            assert alone.token_ids[0] == together.token_ids[index]
            assert (0 in alone.logprobs) == (index in together.logprobs)
            if index in together.logprobs:
                mine, others = alone.logprobs[0], together.logprobs[index]
                assert mine.logprobs.tobytes() == others.logprobs.tobytes()
                assert mine.token_ids.tobytes() == others.token_ids.tobytes()
                assert mine.ranks.tobytes() == others.ranks.tobytes()


def chi_square_limit(degrees: int) -> float:
    """The value that chance exceeds once in 10,000 (Wilson and Hilferty's approximation)."""
    return degrees * (1 - 2 / (9 * degrees) + 3.719 * math.sqrt(2 / (9 * degrees))) ** 3


@pytest.mark.parametrize("vary", ["seed", "position"])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(top_k=9, top_p=0.95),
        *(
            pytest.param(one, marks=pytest.mark.nightly)
            for one in (SamplingParams(temperature=0.6), SamplingParams(min_p=0.1))
        ),
    ],
)
def test_tokens_are_drawn_from_the_distribution(params, vary):
    vocab_size, draws = 300, 8192
    logits = np.random.default_rng(3).normal(0, 1.5, vocab_size).astype(np.float32)
    bench = Bench(vocab_size, num_rows=512)
    counts = np.zeros(vocab_size)
    for start in range(0, draws, 512):
        for row in range(512):
            bench.put(row, params, seed=start + row if vary == "seed" else 77, output=[])
        if vary == "position":  # pretends that the output is this long
            bench.rows.length[:] = len(PROMPT) + start + np.arange(512)
        sampled = bench.sample(np.tile(logits, (512, 1)), list(range(512)))
        counts += np.bincount(sampled.token_ids, minlength=vocab_size)
    weights = oracle.kept_weights([np.float32(x) for x in logits], params)
    expected = np.array([weights.get(token, 0.0) for token in range(vocab_size)]) * draws / sum(weights.values())
    assert counts[expected == 0].sum() == 0
    often = expected >= 5
    observed = np.append(counts[often], counts[~often].sum())
    expected = np.append(expected[often], expected[~often].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    assert ((observed - expected) ** 2 / expected).sum() < chi_square_limit(len(expected) - 1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("penalty", [1e-37, 1e-40, 5e-324])
def test_a_repetition_penalty_near_zero_keeps_logits_finite_and_other_rules_in_force(penalty, temperature):
    logits = random_logits(3, 300) + 5
    logits[EOS[0]] = 40
    rules = {"temperature": temperature, "bad_words_token_ids": ((9,),), "min_tokens": 8}
    of = {"prompt": [*PROMPT, EOS[0]], "seed": 5}
    expected = one(logits, SamplingParams(repetition_penalty=1e-30, **rules), **of).token_ids[0]
    assert expected in {*PROMPT, *OUTPUT} - {9}
    assert one(logits, SamplingParams(repetition_penalty=penalty, **rules), **of).token_ids[0] == expected


def test_ties_between_logits_go_to_the_lowest_id():
    assert one([1.0, 3.0, 3.0, 3.0], SamplingParams(temperature=0.0), prompt=[0], output=[], eos=()).token_ids[0] == 1
    for seed in range(20):  # of four equals, top-k 2 and top-p 0.5 keep the two lowest
        for params in (SamplingParams(top_k=2), SamplingParams(top_p=0.5)):
            assert one([1.0] * 4, params, seed=seed, prompt=[0], output=[], eos=()).token_ids[0] in (0, 1)
    logprobs = one([0.0, -0.0, 5.0, 0.0], SamplingParams(temperature=0.0, logprobs=4), prompt=[0], output=[], eos=())
    assert logprobs.logprobs[0].token_ids.tolist() == [[2, 2, 0, 1, 3]]


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0.0, logprobs=2), SamplingParams(top_p=0.9, logprobs=-1)]
)
def test_non_finite_logits_are_reported_and_affect_no_other_row(params, poison):
    bench = Bench(64)
    for row in range(3):
        bench.put(row, params, seed=row)
    clean = np.random.default_rng(0).normal(0, 2, (3, 64)).astype(np.float32)
    dirty = clean.copy()
    dirty[1, 17] = poison
    expected, found = bench.sample(clean, [0, 1, 2]), bench.sample(dirty, [0, 1, 2])
    assert found.bad.tolist() == [1]
    assert found.token_ids.tolist() == [expected.token_ids[0], 0, expected.token_ids[2]]
    assert sorted(found.logprobs) == [0, 2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("param", "rule"), [("min_tokens", 8), ("bad_words_token_ids", ((1, 2),))])
def test_a_rule_that_leaves_no_token_is_named(param, rule, temperature):
    params = SamplingParams(allowed_token_ids=(2,), temperature=temperature, **{param: rule})
    found = one([1.0] * 12, params, output=[1] * 7)
    name = param.removesuffix("_token_ids")
    reason = f"{name} forbids every token that the request's other rules allow"
    assert (found.bad.tolist(), found.failures) == ([], {0: (reason, name)})
    assert one([1.0] * 12, params, output=[1] * 7 + [3]).token_ids.tolist() == [2]
    poisoned = one([1.0] * 11 + [np.nan], params, output=[1] * 7)
    assert (poisoned.bad.tolist(), poisoned.failures) == ([0], {})


@pytest.mark.parametrize("count", [0, 1, 7, -1])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_are_those_of_the_raw_logits(count, temperature):
    vocab_size = 300
    params = SamplingParams(
        logprobs=count, temperature=temperature, logit_bias={4: 50.0}, repetition_penalty=1.5, top_k=3
    )
    logits = random_logits(9, vocab_size)
    sampled = one(logits.copy(), params)
    found = sampled.logprobs[0]
    token = int(sampled.token_ids[0])
    ranked = sorted(range(vocab_size), key=lambda t: (-logits[t], t))
    assert found.token_ids[0].tolist() == [token, *ranked[: vocab_size if count < 0 else count]]
    assert found.ranks.tolist() == [ranked.index(token) + 1]
    exact = torch.log_softmax(torch.from_numpy(logits).double(), 0)[found.token_ids[0].astype(np.int64)]
    assert np.abs(found.logprobs[0] - exact.numpy()).max() < 2e-6


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.0}, {"repetition_penalty": 1.5, "top_k": 3}])
def test_named_tokens_have_the_same_bits_as_among_all_tokens(fields):
    vocab_size, named = 700, (699, 0, 13, 13, 256)
    logits = random_logits(11, vocab_size)
    sampled = one(logits.copy(), SamplingParams(logprob_token_ids=named, **fields))
    whole = one(logits.copy(), SamplingParams(logprobs=-1, **fields)).logprobs[0]
    found = sampled.logprobs[0]
    by_token = dict(zip(whole.token_ids[0, 1:].tolist(), whole.logprobs[0, 1:].tolist(), strict=True))
    assert found.token_ids.tolist() == [[sampled.token_ids[0], *named]]
    assert found.logprobs[0].tolist() == [by_token[token] for token in found.token_ids[0].tolist()]
    assert found.ranks.tolist() == whole.ranks.tolist()


def test_a_new_row_keeps_no_state_of_the_old_one():
    bench, fresh = Bench(64), Bench(64)
    detailed = SamplingParams(
        temperature=0.4, top_k=3, top_p=0.5, min_p=0.2, repetition_penalty=2.0, frequency_penalty=1.0, min_tokens=9,
        logit_bias={1: 60.0}, allowed_token_ids=(1, 2), bad_words_token_ids=((1,),), logprobs=3, prompt_logprobs=2,
    )  # fmt: skip
    bench.put(0, detailed, seed=5)
    bench.sample(np.zeros((1, 64)), [0])
    for params in (SamplingParams(), SamplingParams(temperature=0.0), SamplingParams(repetition_penalty=1.2)):
        bench.put(0, params, seed=6, output=[4])
        fresh.put(0, params, seed=6, output=[4])
        logits = random_logits(1, 64)[None]
        again, first = bench.sample(logits.copy(), [0]), fresh.sample(logits.copy(), [0])
        assert again.token_ids.tolist() == first.token_ids.tolist()
        assert again.logprobs == first.logprobs == {}
        assert bench.rows.prompt_logprobs[0] is None


def test_incremental_counts_equal_a_recount():
    params = SamplingParams(repetition_penalty=1.3, frequency_penalty=0.7, presence_penalty=0.2, temperature=0.8)
    bench, recount = Bench(33), Bench(33)
    bench.put(0, params, seed=4, output=[])
    output = []
    for step in range(40):
        logits = random_logits(step, 33)[None]
        recount.put(0, params, seed=4, output=output)
        token = bench.sample(logits.copy(), [0]).token_ids
        assert token.tolist() == recount.sample(logits.copy(), [0]).token_ids.tolist()
        bench.rows.append_tokens(np.array([0]), token)
        output.append(int(token[0]))
