"""Budgets of reasoning: at their end the sampler forces the tokens that end it."""

import msgspec
import numpy as np
import pytest

from paged_serve.protocol.messages.samplers import ThinkingBudget
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.structured_outputs import Grammar

from . import sampling_oracle as oracle
from .sampling_bench import DEMO_VOCAB_SIZE, EOS, PROMPT, WAYS, Bench, demo_grammars, random_logits, samplers

every_way = pytest.fixture(autouse=True, params=WAYS)(samplers)
grammars = pytest.fixture(scope="module")(demo_grammars)

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
