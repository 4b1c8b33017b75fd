"""Beam search over a table of log-probabilities, compared with all possible sequences."""

import itertools
import math
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from paged_serve.frontend.offline.beam_search import beam_search
from paged_serve.frontend.offline.outputs import CompletionOutput, Logprob, RequestOutput
from paged_serve.frontend.text.beam_search import MAX_LENGTH_PENALTY, BeamSearchParams, BeamSearchSequence
from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.engine_core import Welcome
from paged_serve.protocol.messages.message import MAX_TOKENS_PER_MESSAGE

EOS, VOCABULARY, LENGTH = 0, 4, 4
PROMPT = [7, 8]
LIMITS = Welcome(0, 4096, VOCABULARY, 16, 64, 8, eos_token_ids=(EOS,))
TOKENIZER = SimpleNamespace(  # another model's: its end token is not the model's
    eos_token_ids=(EOS + 1,),
    decode=lambda ids, skip_special_tokens: " ".join(map(str, ids)) + "!" * skip_special_tokens,
)


def logprob(tokens: tuple[int, ...], token: int, seed: int) -> float:
    weights = [random.Random(f"{seed} {tokens} {each}").random() + 0.05 for each in range(VOCABULARY)]
    return math.log(weights[token] / sum(weights))


def one_step(seed: int, width: int):
    def step(beams, params):
        assert (params.max_tokens, params.logprobs) == (1, 2 * width)
        for tokens in beams:
            found = {token: Logprob(logprob(tuple(tokens), token, seed)) for token in range(VOCABULARY)}
            yield RequestOutput("", None, tokens, outputs=[CompletionOutput(0, "", [1], 0.0, [found])])

    return lambda beams, numbers, params: list(step(beams, params))


def all_sequences(seed: int, penalty: float) -> list[tuple[float, tuple[int, ...]]]:
    """(score, generated tokens) of each sequence that ends with the end token or has the full length."""
    found = []
    for length in range(1, LENGTH + 1):
        for tokens in itertools.product(range(VOCABULARY), repeat=length):
            if EOS in tokens[:-1] or (tokens[-1] != EOS and length < LENGTH):
                continue
            total = 0.0
            for i, token in enumerate(tokens):
                total += logprob((*PROMPT, *tokens[:i]), token, seed)
            num_counted = len(PROMPT) + length - (tokens[-1] == EOS)
            found.append((total / num_counted**penalty, tokens))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("penalty", [0.0, 1.0, 1.7])
def test_a_beam_as_wide_as_the_search_space_finds_the_best(penalty):
    width = VOCABULARY**LENGTH
    for seed in range(5):
        params = BeamSearchParams(beam_width=width, max_tokens=LENGTH, length_penalty=penalty)
        [output] = beam_search(one_step(seed, width), [PROMPT], params, TOKENIZER, LIMITS)
        found = [(beam.score(penalty), tuple(beam.tokens[len(PROMPT) :])) for beam in output.sequences]
        assert sorted(found, reverse=True) == all_sequences(seed, penalty)
        assert [score for score, _ in found] == sorted((score for score, _ in found), reverse=True)
        for beam in output.sequences:
            assert beam.finish_reason == ("stop" if beam.tokens[-1] == EOS else "length")
            shown = beam.tokens[:-1] if beam.tokens[-1] == EOS else beam.tokens
            assert beam.text == " ".join(map(str, shown)) + "!"


def test_narrow_beams_are_the_best_at_each_step():
    params = BeamSearchParams(beam_width=2, max_tokens=LENGTH, ignore_eos=True, include_stop_str_in_output=True)
    beams = [(0.0, tuple(PROMPT))]
    for _ in range(LENGTH):
        grown = [(total + logprob(at, token, 9), (*at, token)) for total, at in beams for token in range(VOCABULARY)]
        beams = sorted(grown, key=lambda beam: beam[0] / len(beam[1]), reverse=True)[:2]
    [output] = beam_search(one_step(9, 2), [PROMPT], params, TOKENIZER, LIMITS)
    assert [tuple(beam.tokens) for beam in output.sequences] == [tokens for _, tokens in beams]
    assert output.sequences[0].text == " ".join(map(str, beams[0][1]))
    params = replace(params, include_stop_str_in_output=False, skip_special_tokens=False)
    [shown] = beam_search(one_step(9, 2), [PROMPT], params, TOKENIZER, LIMITS)
    assert [beam.text for beam in shown.sequences] == [beam.text for beam in output.sequences]
    assert {beam.finish_reason for beam in output.sequences} == {"length"}


def test_sequences_that_fill_the_context_end_there_and_others_go_on():
    params = BeamSearchParams(beam_width=2, max_tokens=LENGTH, ignore_eos=True)
    prompts, limits = [[*PROMPT, 7], PROMPT], Welcome(0, 4, VOCABULARY, 16, 64, 8)
    found = beam_search(one_step(9, 2), prompts, params, TOKENIZER, limits)
    assert [[len(beam.tokens) for beam in output.sequences] for output in found] == [[4, 4], [4, 4]]
    [first, _] = found
    params = replace(params, max_tokens=1)
    assert beam_search(one_step(9, 2), prompts[:1], params, TOKENIZER, limits) == [first]


@pytest.mark.parametrize("penalty", [-MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY])
def test_the_score_of_the_longest_sequence_is_a_number(penalty):
    score = BeamSearchSequence(range(MAX_TOKENS_PER_MESSAGE), cum_logprob=-1e9).score(penalty)
    assert -math.inf < score < 0


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("beam_width", True, "beam_width is True; it must be an integer of at least 1"),
        ("max_tokens", 2.0, "max_tokens is 2.0; it must be an integer of at least 1"),
        ("ignore_eos", "no", "ignore_eos is 'no'; it must be true or false"),
        ("include_stop_str_in_output", 1, "include_stop_str_in_output is 1; it must be true or false"),
        ("structured_outputs", "x", "a beam search follows no grammar; use SamplingParams with best_of instead"),
        ("length_penalty", None, "length_penalty is None; it must be a number from -40 to 40"),
        ("length_penalty", math.nan, "length_penalty is nan; it must be a number from -40 to 40"),
        ("length_penalty", 41, "length_penalty is 41; it must be a number from -40 to 40"),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(field, value, says):
    with pytest.raises(InvalidRequest, match=says) as refused:
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4, field: value})
    assert refused.value.param == field
