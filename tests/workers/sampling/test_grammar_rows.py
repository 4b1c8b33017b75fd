"""Rows with grammars: they sample what a list of the allowed tokens gives, and leave no trace for others."""

import msgspec
import numpy as np
import pytest

from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.structured_outputs import Grammar

from .sampling_bench import DEMO_VOCAB_SIZE, EOS, WAYS, Bench, demo_grammars, random_logits, samplers

every_way = pytest.fixture(autouse=True, params=WAYS)(samplers)
grammars = pytest.fixture(scope="module")(demo_grammars)

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
    assert sampled.failures[0].reason
    assert sampled.failures[0].param == "structured_outputs"
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
