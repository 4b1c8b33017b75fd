"""The sampler against the plain oracle, parameter by parameter and in random mixtures, and its distribution."""

import math

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.samplers import Dry, ThinkingBudget, Xtc
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.structured_outputs import Grammar
from paged_serve.protocol.messages.worker import NewRow
from paged_serve.workers.backends.cpu.sampling import CpuPasses
from paged_serve.workers.backends.cuda.sampler import DeviceSampler
from paged_serve.workers.batch.grammars import Grammars
from paged_serve.workers.batch.request_rows import RequestRows
from paged_serve.workers.process.rank import DEMO_MODEL
from paged_serve.workers.sampling.numpy_passes import NumpyPasses
from paged_serve.workers.sampling.sampler import Sampler

from ...cuda.checks_sampler import BLOCKS
from ...cuda.emulated import COMPILER, EmulatorLauncher
from . import sampling_oracle as oracle

EOS = (2, 3)
DEMO_VOCAB_SIZE = 1024
PROMPT, OUTPUT = [5, 6, 7, 5], [8, 5, 9, 9]


@pytest.fixture(scope="module")
def emulator():
    return EmulatorLauncher() if COMPILER else None


@pytest.fixture(autouse=True, params=["numpy", "kernels", "device"])
def every_way(request, pools, emulator):
    """Runs every test here in numpy, on the CPU kernels, and on the CUDA kernels in the emulator."""
    if request.param == "numpy":
        Bench.make_sampler = lambda vocab_size: Sampler(NumpyPasses(vocab_size))
    elif request.param == "kernels":
        if pools[-1] is None:
            pytest.skip("the kernels are not built")
        Bench.make_sampler = lambda vocab_size: Sampler(CpuPasses(pools[-1]))
    else:
        if emulator is None:
            pytest.skip("the emulator needs g++")
        Bench.make_sampler = lambda vocab_size: DeviceSampler(emulator, vocab_size, "cpu", BLOCKS)


class Bench:
    """Rows and a sampler for a small vocabulary."""

    make_sampler = None

    def __init__(self, vocab_size: int, num_rows: int = 16, grammars: Grammars | None = None):
        self.rows = RequestRows(num_rows, max_len=64, block_size=16, vocab_size=vocab_size, grammars=grammars)
        self.sampler = Bench.make_sampler(vocab_size)

    def put(self, row: int, params: SamplingParams, seed: int = 0, prompt=PROMPT, output=OUTPUT, eos=EOS) -> None:
        ids = pack_ids([*prompt, *output])
        self.rows.reset(NewRow(row, ids, len(prompt), 0, (pack_ids([1]),), seed, eos, params))

    def sample(self, logits: np.ndarray, rows: list[int]):
        self.rows.sampling.start_masks(np.array(rows))
        return self.sampler.sample(torch.from_numpy(logits.astype(np.float32)), np.array(rows), self.rows)


def one(logits, params: SamplingParams, **state):
    bench = Bench(len(logits))
    bench.put(0, params, **state)
    return bench.sample(np.array(logits)[None], [0])


def random_logits(seed: int, vocab_size: int) -> np.ndarray:
    """Logits of both signs with many ties."""
    return (np.random.default_rng(seed).normal(0, 3, vocab_size) * 4).round().astype(np.float32) / 4


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
    for case in range(12):
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


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(requests, min_size=1, max_size=6))
def test_random_mixtures_agree_with_the_oracle_row_by_row(batch):
    bench = Bench(33)
    logits = np.stack([random_logits(case, 33) for *_, case in batch])
    for row, (params, seed, prompt, output, _) in enumerate(batch):
        bench.put(row, params, seed, prompt, output)
    sampled = bench.sample(logits.copy(), list(range(len(batch))))
    for row, (params, seed, prompt, output, _) in enumerate(batch):
        expected = oracle.sample(logits[row], params, seed, prompt, output, EOS)
        assert (row in sampled.bad) == (expected is None)
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


def test_rules_that_leave_no_token_are_reported():
    params = SamplingParams(allowed_token_ids=(2,), min_tokens=8)
    for temperature in (0.0, 1.0):
        assert one(
            [1.0] * 12, SamplingParams(allowed_token_ids=(2,), min_tokens=8, temperature=temperature)
        ).bad.tolist() == [0]
    assert one([1.0] * 12, params, output=[1] * 8).token_ids.tolist() == [2]


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


@pytest.fixture(scope="module")
def grammars():
    return Grammars(DEMO_MODEL / "tokenizer.json", DEMO_VOCAB_SIZE, EOS)


GRAMMAR = Grammar('{"grammars": [{"lark_grammar": "start: /[a-f]{1,3}/ \\" and \\" /[0-9]+/"}]}')
GRAMMAR_PARAMS = [
    SamplingParams(temperature=0.0, logprobs=4, grammar=GRAMMAR),
    SamplingParams(temperature=1.5, repetition_penalty=1.4, frequency_penalty=0.5, grammar=GRAMMAR),
    SamplingParams(top_k=9, top_p=0.8, bad_words_token_ids=((40,), (41,)), logit_bias={60: 4.0}, grammar=GRAMMAR),
]


@pytest.mark.parametrize("params", GRAMMAR_PARAMS)
def test_a_grammar_is_equivalent_to_its_allowed_token_ids(grammars, params):
    """Each token equals that of a request that lists the allowed tokens; the other row has no grammar."""
    bench, named = Bench(DEMO_VOCAB_SIZE, grammars=grammars), Bench(DEMO_VOCAB_SIZE)
    output: list[int] = []
    bench.put(0, params, seed=7, output=output)
    bench.put(1, SamplingParams(temperature=0.0), seed=8)
    for step in range(30):
        logits = np.stack([random_logits(step, DEMO_VOCAB_SIZE), random_logits(900 + step, DEMO_VOCAB_SIZE)])
        sampled = bench.sample(logits.copy(), [0, 1])
        bits = np.unpackbits(bench.rows.sampling.grammars[0].bits.view(np.uint8), bitorder="little")
        by_name = msgspec.structs.replace(params, grammar=None, allowed_token_ids=tuple(np.flatnonzero(bits).tolist()))
        named.put(0, by_name, seed=7, output=output)
        expected = named.sample(logits[:1].copy(), [0])
        assert sampled.token_ids[0] == expected.token_ids[0]
        assert sampled.token_ids[1] == logits[1].argmax()
        if params.logprobs:
            assert sampled.logprobs[0].logprobs.tobytes() == expected.logprobs[0].logprobs.tobytes()
        if sampled.token_ids[0] in EOS:
            break
        bench.rows.append_tokens(np.array([0, 1]), sampled.token_ids)
        output.append(int(sampled.token_ids[0]))
    assert sampled.token_ids[0] in EOS
    assert not sampled.failures


def test_a_grammar_without_a_next_token_is_reported_with_its_reason_and_affects_no_other_row(grammars):
    bench = Bench(DEMO_VOCAB_SIZE, grammars=grammars)
    bench.put(0, SamplingParams(grammar=Grammar("nonsense"), logprobs=2))
    bench.put(1, SamplingParams(temperature=0.0))
    logits = np.stack([random_logits(1, DEMO_VOCAB_SIZE)] * 2)
    sampled = bench.sample(logits.copy(), [0, 1])
    assert list(sampled.failures) == [0]
    assert sampled.failures[0]
    assert not len(sampled.bad)
    assert not sampled.logprobs
    assert sampled.token_ids[1] == logits[1].argmax()


def test_a_reused_row_has_no_grammar_of_the_previous_request(grammars):
    bench, fresh = Bench(DEMO_VOCAB_SIZE, grammars=grammars), Bench(DEMO_VOCAB_SIZE)
    bench.put(0, GRAMMAR_PARAMS[0], output=[])
    bench.sample(random_logits(1, DEMO_VOCAB_SIZE)[None], [0])
    for each in (bench, fresh):
        each.put(0, SamplingParams(repetition_penalty=1.2), seed=3)
    logits = random_logits(2, DEMO_VOCAB_SIZE)[None]
    assert bench.sample(logits.copy(), [0]).token_ids == fresh.sample(logits.copy(), [0]).token_ids


RULES = SamplingParams(
    allowed_token_ids=(1, 2), bad_words_token_ids=((30,), (31,)), logit_bias={30: -100.0, 31: -100.0}, min_tokens=9
)


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0, logprobs=2), SamplingParams(top_k=5), RULES])
def test_reasoning_with_a_spent_budget_ends_whatever_is_likely_or_forbidden(params):
    spent = msgspec.structs.replace(params, thinking=ThinkingBudget(2, (8,), (30, 31)), stop_token_ids=(30,))
    for output, expected in (([8, 5, 9], 30), ([8, 5, 9, 30], 31), ([8, 30, 5, 9], 30), ([8, 5, 30], 31)):
        logits = random_logits(len(output), 33)
        bench = Bench(33)
        bench.put(0, spent, output=output)
        bench.put(1, params, output=output)  # a neighbour
        sampled = bench.sample(np.stack([logits, logits]), [0, 1])
        assert sampled.token_ids[0] == expected, output
        assert sampled.token_ids[1] == oracle.sample(logits, params, 0, PROMPT, output, EOS)
        if params.logprobs is not None:
            raw = logits.astype(np.float64)
            logprob = raw[expected] - np.log(np.exp(raw).sum())
            assert sampled.logprobs[0].logprobs[0, 0] == pytest.approx(logprob, abs=1e-5), (
                "the logprob is not the model's"
            )


@pytest.mark.parametrize("output", [[], [5], [8], [8, 5], [9, 8], [8, 5, 30, 31, 7, 7, 7]])
def test_a_budget_that_is_not_spent_changes_nothing(output):
    params = SamplingParams(temperature=1.3, allowed_token_ids=tuple(range(4, 33)))
    bench = Bench(33)
    for seed in range(8):
        logits = random_logits(seed, 33)
        bench.put(0, msgspec.structs.replace(params, thinking=ThinkingBudget(2, (8,), (30, 31))), seed, output=output)
        token = bench.sample(logits[None].copy(), [0]).token_ids[0]
        assert token == oracle.sample(logits, params, seed, PROMPT, output, EOS)


LISTED = SamplingParams(allowed_token_ids=tuple(range(4, 60)), temperature=1.5)
FREE_AT_FIRST = Grammar('{"grammars": [{"lark_grammar": "start: /[a-z]{2,9}/"}]}', after=(41, 45), opens=(40,))


@pytest.mark.parametrize("params", [SamplingParams(), LISTED, SamplingParams(grammar=FREE_AT_FIRST, temperature=1.5)])
@pytest.mark.parametrize("end", [(41,), (42, 43)])
def test_a_forced_token_leaves_no_trace_in_later_masks(grammars, params, end):
    """A row that goes on from step to step samples like one that begins with the same output."""
    params = msgspec.structs.replace(params, thinking=ThinkingBudget(1, (40,), end))
    output, stepwise = [40, 8], Bench(DEMO_VOCAB_SIZE, grammars=grammars)
    stepwise.put(0, params, output=output)
    for step in range(8):
        logits, fresh = random_logits(step, DEMO_VOCAB_SIZE), Bench(DEMO_VOCAB_SIZE, grammars=grammars)
        fresh.put(0, params, output=output)
        sampled = stepwise.sample(logits[None].copy(), [0])
        assert sampled.token_ids.tolist() == fresh.sample(logits[None].copy(), [0]).token_ids.tolist()
        stepwise.rows.append_tokens(np.array([0]), sampled.token_ids)
        output.append(int(sampled.token_ids[0]))
    assert tuple(output[2 : 2 + len(end)]) == end


def test_a_started_grammar_is_not_interrupted_by_a_tag(grammars):
    """To the grammar the tag's token is text, which it may allow or not."""
    tags = ThinkingBudget(1, (40,), (41,))
    for source, is_forced in (("start: /(?s:.*)/", True), ("start: /[a-z]+/", False)):
        grammar = Grammar(f'{{"grammars": [{{"lark_grammar": "{source}"}}]}}')
        bench, free = (Bench(DEMO_VOCAB_SIZE, grammars=grammars) for _ in range(2))
        logits, begun = random_logits(3, DEMO_VOCAB_SIZE), msgspec.structs.replace(tags, num_prompt_tokens=1)
        bench.put(0, SamplingParams(temperature=0.0, grammar=grammar, thinking=begun), output=[])
        free.put(0, SamplingParams(temperature=0.0, grammar=grammar), output=[])
        token = bench.sample(logits[None].copy(), [0]).token_ids[0]
        assert token == (41 if is_forced else free.sample(logits[None].copy(), [0]).token_ids[0])
