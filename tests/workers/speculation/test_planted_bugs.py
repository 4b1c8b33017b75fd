"""Bugs planted into verification change outputs, so the comparisons with plain decoding detect them."""

from dataclasses import replace

import numpy as np
import pytest

from paged_serve.workers.batch.request_rows import RequestRows
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.speculation import verification
from paged_serve.workers.speculation.accepted_states import AcceptedStates
from paged_serve.workers.speculation.drafts import Drafts, num_drafts
from paged_serve.workers.speculation.rounds import Rounds
from paged_serve.workers.speculation.verification import Verification
from paged_serve.workers.speculation.verified_step import verified_step

from ..invariance.workloads.random_workload import ModelChoice
from ..invariance.workloads.workload_models import Models
from .workloads import Bench, played_alike

SEEDS = range(46, 50)  # two of them sample several positions of a row with temperature
sample_one, sample, make, next_positions = Rounds._sample, Verification.sample, Drafts.make, RequestRows.next_positions
store = AcceptedStates.store


def with_another_random_number(rounds, logits, places, rows, ahead):
    """That of an earlier position."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RequestRows, "next_positions", lambda state, of: next_positions(state, of) // 2)
        return sample_one(rounds, logits, places, rows, ahead)


def with_the_random_number_of_the_first_position(rounds, logits, places, rows, ahead):
    return sample_one(rounds, logits, places, rows, np.zeros_like(ahead))


def with_logits_of_the_first_position(rounds, logits, places, rows, ahead):
    return sample_one(rounds, logits, np.maximum(places - 1, 0), rows, ahead)


def counting_drafts(drafts, chunks):
    """Penalties count each draft as output."""
    made = make(drafts, chunks)
    for chunk, tokens in zip(chunks, made, strict=True):
        for token in tokens[tokens >= 0]:
            drafts._rows.sampling.append(np.array([chunk.row]), np.array([token]))
    return made


def accepting_everything(rounds, logits, places, rows, ahead):
    """Each draft continues its row, whatever was sampled."""
    found, _ = sample_one(rounds, logits, places, rows, ahead)
    return found, rounds._state.token_ids[rows, rounds._state.length[rows] + ahead].astype(np.int64)


def starting_from_another_token(verification, logits, step):
    """The next decode step starts from a token that was not sampled."""
    found = sample(verification, logits, step)
    found.last_tokens[:] = found.sampled.token_ids[0]
    return found


def advancing_by_rejected_drafts(states, step, num_sampled):
    return store(states, step, num_drafts(step.drafts[step.verified]) + 1)


def advancing_by_no_draft(states, step, num_sampled):
    return None


def storing_after_drafts(*arguments):
    """The forward pass stores the states after all tokens."""
    step = verified_step(*arguments)
    return replace(
        step, arrays=replace(step.arrays, stored_lens=None if step.arrays.stored_lens is None else step.arrays.kv_lens)
    )


STATE_BUGS = [
    (AcceptedStates, "store", advancing_by_rejected_drafts),
    (AcceptedStates, "store", advancing_by_no_draft),
    (verification, "verified_step", storing_after_drafts),
]
BUGS = [
    (Rounds, "_sample", with_another_random_number),
    (Rounds, "_sample", with_the_random_number_of_the_first_position),
    (Rounds, "_sample", with_logits_of_the_first_position),
    (Rounds, "_sample", accepting_everything),
    (Drafts, "make", counting_drafts),
    (Verification, "sample", starting_from_another_token),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    if not cpu.runnable_isas():
        pytest.skip("the kernels are not built")
    models = Models(tmp_path_factory.mktemp("models"))
    yield models
    models.close()


def bench(models, checkpoint):
    return Bench(models.load(ModelChoice(checkpoint, "auto", cpu.runnable_isas()[0], threads=1)))


@pytest.mark.parametrize(("owner", "name", "bug"), BUGS, ids=lambda each: getattr(each, "__name__", each))
def test_a_planted_bug_is_detected(models, monkeypatch, owner, name, bug):
    monkeypatch.setattr(owner, name, bug)
    with pytest.raises(AssertionError, match="seed"):
        play_all(bench(models, "llama"))


@pytest.mark.parametrize(("owner", "name", "bug"), STATE_BUGS, ids=lambda each: getattr(each, "__name__", each))
def test_a_planted_bug_in_states_is_detected(models, monkeypatch, owner, name, bug):
    monkeypatch.setattr(owner, name, bug)
    with pytest.raises(AssertionError, match=r"seed|NaN"):
        play_all(bench(models, "states"))


def play_all(bench):
    for seed in SEEDS:
        played_alike(bench, seed)
