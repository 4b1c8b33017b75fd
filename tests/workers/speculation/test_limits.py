"""Where verification ends: rejected drafts, bad tokens, grammars without a continuation, and full rows."""

import json

import pytest

from paged_serve.protocol.messages.config import ModelConfig, SpeculationConfig
from paged_serve.protocol.messages.message import pack_ids, unpack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.structured_outputs import Grammar
from paged_serve.protocol.messages.worker import Chunk, SchedulerOutput
from paged_serve.workers.batch.grammars import Grammars
from paged_serve.workers.batch.sampling_columns import SamplingColumns
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.process.rank import DEMO_MODEL
from paged_serve.workers.speculation.methods import drafter_of
from paged_serve.workers.speculation.ngram import NgramDrafter
from paged_serve.workers.speculation.rounds import Rounds
from paged_serve.workers.speculation.suffix import SuffixDrafter

from ..tiny_models.tiny_model import write_tiny_model
from .direct import MAX_LEN, Fixed, Row, counts
from .workloads import TOKENIZER, TOKENS_OF_GRAMMARS

PROMPT = [5, 6, 7, 8]
GREEDY = SamplingParams(temperature=0.0, logprobs=2)


def loaded(folder, make_pool):
    return load_model(
        str(folder), ModelConfig(device="cpu"), TensorParallelGroup(), lambda done, total: None, make_pool()
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory, make_pool):
    return loaded(write_tiny_model(tmp_path_factory.mktemp("tiny")), make_pool)


@pytest.fixture(scope="module")
def demo(make_pool):
    return loaded(DEMO_MODEL, make_pool)


@pytest.fixture(scope="module")
def right(model):
    """The tokens of plain decoding."""
    row = Row(model, Fixed(), PROMPT, GREEDY)
    return [unpack_ids(row.first.token_ids)[0], *row.decoded(MAX_LEN - len(PROMPT) - 1)]


def test_a_row_gets_the_drafts_that_agree_and_one_token_more(model, right):
    drafter = Fixed(*right[1:4], right[4] + 1, 7)
    row = Row(model, drafter, PROMPT, GREEDY)
    output = row.verify(8)
    assert counts(output) == ([5], [4])
    assert list(unpack_ids(output.token_ids)) == right[1:5]
    assert [entry.index for entry in output.logprobs] == [0, 1, 2, 3]


def test_keys_of_rejected_drafts_stay_and_change_nothing(model, right):
    """Each is overwritten by the step that computes its position again; before that, no token attends to it."""
    row = Row(model, Fixed(*[9] * 8), PROMPT, GREEDY)
    assert counts(row.verify(8)) == ([8], [1])
    assert row.is_written(len(PROMPT) + 8)
    assert not row.is_written(len(PROMPT) + 9)
    assert row.decoded(12) == right[2:14]


def test_steps_start_before_the_tokens_of_earlier_ones_are_taken(model, right):
    """A chunk of one token without drafts starts from a late token, too: its row speculates, but not in this step."""
    row = Row(model, Fixed(*right[3:5], 7), PROMPT, GREEDY)
    join, leave = ({name: pack_ids([0])} for name in ("decode_joins", "decode_leaves"))
    late = {"chunks": (Chunk(0, 1),)}
    plans = (join, leave | late, {"chunks": (Chunk(0, 1, 3),)}, late, join)
    started = [row.runner.launch(SchedulerOutput(1, 1, **plan)) for plan in plans]
    tokens = [list(unpack_ids(row.runner.result(step).token_ids)) for step in started]
    assert tokens == [[right[1]], [right[2]], right[3:6], [right[6]], [right[7]]]


def test_a_full_row_ends_at_its_last_token(model, right):
    row = Row(model, Fixed(*right[1:]), PROMPT, GREEDY)
    row.verify(64)
    row = Row(model, Fixed(*right[-4:]), [*PROMPT, *right[: MAX_LEN - len(PROMPT) - 5]], GREEDY)
    output = row.verify(8)
    assert counts(output) == ([3], [4])
    assert list(unpack_ids(output.token_ids)) == right[-4:]
    with pytest.raises(AssertionError, match="row 0 has 64 tokens and no room for the next"):
        row.verify(8)


def test_a_row_with_more_to_compute_than_its_last_token_has_no_drafts(model):
    row = Row(model, Fixed(9), PROMPT, GREEDY)
    row.runner._rows.num_computed[0] -= 1
    with pytest.raises(AssertionError, match="row 0 has more than its last token to compute"):
        row.verify(8)


IMPOSSIBLE = SamplingParams(temperature=0.0, allowed_token_ids=(9,), bad_words_token_ids=((9, 9),))


def test_a_row_stops_at_a_token_that_cannot_be_emitted(model):
    """The token in its place is 0, and so is the draft."""
    row = Row(model, Fixed(0, 0, 0), PROMPT, IMPOSSIBLE)
    output = row.verify(3)
    [failure] = output.failures
    assert (output.token_ids, failure.index, failure.param, counts(output)) == (bytes(4), 0, "bad_words", ([3], [1]))


def test_a_planted_round_after_a_bad_token_is_detected(model, monkeypatch):
    monkeypatch.setattr("paged_serve.workers.speculation.rounds.END", 0)
    assert counts(Row(model, Fixed(0, 0, 0), PROMPT, IMPOSSIBLE).verify(3)) == ([3], [2])


ANSWER = Grammar(json.dumps({"grammars": [{"lark_grammar": 'start: "always the same answer"'}]}))


def grammars() -> Grammars:
    return Grammars(TOKENIZER, TOKENS_OF_GRAMMARS, (2, 0))


def test_the_tokens_that_a_grammar_forces_are_drafted_and_the_row_stops_at_its_end(demo):
    params = SamplingParams(temperature=0.0, grammar=ANSWER)
    plain = Row(demo, Fixed(), PROMPT, params, grammars())
    tokens = [unpack_ids(plain.first.token_ids)[0]]
    while tokens[-1] not in (0, 2):
        tokens += plain.decoded(1)
    row = Row(demo, Fixed(0, 0, 0, 0), PROMPT, params, grammars())
    output = row.verify(len(tokens) + 4)
    found = list(unpack_ids(output.token_ids))
    assert found[: len(tokens) - 1] == tokens[1:]
    assert counts(output)[1][0] <= len(tokens)
    assert [failure.index for failure in output.failures] in ([], [len(found) - 1])


def test_a_planted_round_with_the_mask_of_the_last_is_detected(demo, monkeypatch):
    sample = Rounds.sample

    def without_new_masks(*arguments):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SamplingColumns, "start_masks", lambda columns, rows: None)
            return sample(*arguments)

    monkeypatch.setattr(Rounds, "sample", without_new_masks)
    row = Row(demo, Fixed(), PROMPT, SamplingParams(temperature=0.0, grammar=ANSWER), grammars())
    assert counts(row.verify(4))[1] < [4]


def test_the_configuration_names_the_drafter():
    assert drafter_of(SpeculationConfig("off"), "cpu") is None
    assert isinstance(drafter_of(SpeculationConfig("ngram"), "cuda"), NgramDrafter)
    assert isinstance(drafter_of(SpeculationConfig(), "cpu"), SuffixDrafter)
    assert drafter_of(SpeculationConfig(), "cuda") is None
