"""A request that may have killed a core, as its client sees it: withheld, run in its turn, cleared or ended."""

import pytest

from paged_serve.frontend.client.session.dispatch import DEADLY
from paged_serve.frontend.client.session.withheld_requests import ISOLATION_TOKENS, MAX_ISOLATION_TOKENS
from paged_serve.protocol.messages.engine_core import (
    DEADLY_ISOLATIONS,
    AbortRequests,
    CandidatesWithheld,
    CoreFailure,
    EngineCoreRequest,
    EngineFailed,
    IsolationTurn,
    Welcome,
)
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

from ..fake_core import LIMITS, output
from .session_link import Link

PARAMS = SamplingParams(max_tokens=400)


def lose_core(link, epoch, *failures, known=False):
    """Connect to the next core; `failures`: (epoch, turn) of previous ones. Returns the messages of the client."""
    link.receive(EngineFailed("gone"))
    link.new()
    link.receive(Welcome(epoch, **LIMITS, known=known, failures=tuple(CoreFailure(*failure) for failure in failures)))
    return link.new()


def requests_in(messages):
    return [(m.request_id, m.isolation_tokens) for m in messages if isinstance(m, EngineCoreRequest)]


def take_turn(link, epoch, turn):
    """The messages that the client sends in its turn."""
    link.receive(IsolationTurn(epoch, turn))
    return link.new()


def start(num_requests):
    link = Link()
    requests = [link.session.submit([p], PARAMS) for p in range(1, num_requests + 1)]
    link.new()
    return link, requests


def advance(link, epoch, request, num_tokens):
    stream = request.request_id
    start = len(request.streams[0].received)
    link.receive(output(epoch, stream, start, list(range(start, start + num_tokens))))


def test_after_an_external_kill_all_requests_are_sent_at_once():
    link, _ = start(3)
    assert requests_in(lose_core(link, 2)) == [(1, 0), (2, 0), (3, 0)]


def test_after_a_core_crash_its_requests_wait_for_their_turns_and_new_ones_do_not():
    link, requests = start(2)
    advance(link, 1, requests[0], 5)
    link.receive(EngineFailed("gone"))
    link.session.submit([9], PARAMS)
    held, *sent = lose_core(link, 2, (1, 0))
    assert held == CandidatesWithheld(2), "before anything else is sent"
    assert requests_in(sent) == [(3, 0)]
    assert requests_in(take_turn(link, 2, 1)) == [(1, ISOLATION_TOKENS)]
    advance(link, 2, requests[0], ISOLATION_TOKENS - 1)
    assert CandidatesWithheld not in link.kinds()
    advance(link, 2, requests[0], 1)
    assert link.new() == [CandidatesWithheld(1)]
    assert requests_in(take_turn(link, 2, 2)) == [(2, ISOLATION_TOKENS)]
    assert link.session.is_awaited
    link.receive(output(2, 2, 0, [7], FinishReason.STOP))
    assert link.new() == [CandidatesWithheld(0)]
    assert not link.session.is_awaited


def test_the_isolated_request_of_two_cores_that_die_ends_with_an_error_and_the_others_continue():
    link, (poison, cleared, waiting) = start(3)
    lose_core(link, 2, (1, 0))
    take_turn(link, 2, 1)
    assert lose_core(link, 3, (1, 0), (2, 1)) == [CandidatesWithheld(3)]
    assert requests_in(take_turn(link, 3, 1)) == [(poison.request_id, ISOLATION_TOKENS)], "once more, before the others"
    sent = lose_core(link, 4, (1, 0), (2, 1), (3, 1))
    assert [poison.take().finish_reason, poison.done] == [FinishReason.ERROR, True]
    assert poison.streams[0].last.error == DEADLY
    assert sent == [CandidatesWithheld(2)], "a withheld request still is"
    assert requests_in(take_turn(link, 4, 1)) == [(cleared.request_id, ISOLATION_TOKENS)]
    advance(link, 4, cleared, ISOLATION_TOKENS)
    assert link.new() == [CandidatesWithheld(1)]
    sent = lose_core(link, 5, (1, 0), (2, 1), (3, 1), (4, 2))
    assert requests_in(sent) == [(cleared.request_id, 0)], "it was not its turn"
    assert (cleared.error, waiting.error) == (None, None)


def test_a_request_that_was_cleared_after_a_deadly_isolation_has_two_again():
    link, [request] = start(1)
    failures, epoch = [(1, 0)], 2
    for _ in range(2):
        lose_core(link, epoch, *failures)
        take_turn(link, epoch, 1)
        failures, epoch = [*failures, (epoch, 1)], epoch + 1
        lose_core(link, epoch, *failures)
        [(_, isolation_tokens)] = requests_in(take_turn(link, epoch, 1))
        advance(link, epoch, request, isolation_tokens)
        assert link.new() == [CandidatesWithheld(0)]
        failures, epoch = [*failures, (epoch, 0)], epoch + 1
    assert request.error is None


@pytest.mark.parametrize("failures", [[(1, 0)], [(1, 0), (2, 7)], [(1, 0), (3, 1)]])
def test_the_isolated_request_of_a_core_that_was_killed_is_isolated_again(failures):
    link, [request] = start(1)
    lose_core(link, 2, (1, 0))
    take_turn(link, 2, 1)
    assert lose_core(link, 4, *failures) == [CandidatesWithheld(1)]
    assert requests_in(take_turn(link, 4, 1)) == [(request.request_id, ISOLATION_TOKENS)]
    assert request.error is None


@pytest.mark.parametrize("turns", [[], [7]], ids=["killed", "failed in another turn"])
def test_isolations_in_which_no_core_failed_never_end_a_request(turns):
    link, [request] = start(1)
    failures = [(1, 0)]
    lose_core(link, 2, *failures)
    for epoch in range(2, 2 + 2 * DEADLY_ISOLATIONS):
        assert requests_in(take_turn(link, epoch, 1)) == [(request.request_id, ISOLATION_TOKENS)]
        failures += [(epoch, turn) for turn in turns]
        assert lose_core(link, epoch + 1, *failures) == [CandidatesWithheld(1)]
    assert request.error is None


def test_every_death_makes_the_isolation_longer_up_to_a_bound():
    link, [request] = start(1)
    lengths = []
    for epoch in range(2, 7):
        lose_core(link, epoch, *((past, 0) for past in range(1, epoch)))
        [(_, isolation_tokens)] = requests_in(take_turn(link, epoch, 1))
        lengths.append(isolation_tokens)
        advance(link, epoch, request, 400 if isolation_tokens > 400 else isolation_tokens)
        if isolation_tokens > 100:
            break
        assert CandidatesWithheld in link.kinds()
    assert lengths == [ISOLATION_TOKENS, ISOLATION_TOKENS**2, MAX_ISOLATION_TOKENS]


def test_a_candidate_that_is_aborted_while_it_waits_needs_no_turn():
    link, (first, second) = start(2)
    lose_core(link, 2, (1, 0))
    link.session.abort(first)
    assert first.take().finish_reason is FinishReason.ABORT
    assert requests_in(take_turn(link, 2, 1)) == [(second.request_id, ISOLATION_TOKENS)]
    link.session.abort(second)
    link.receive(output(2, second.request_id, 0, [], FinishReason.ABORT))
    assert CandidatesWithheld(0) in link.new()


def test_an_unneeded_turn_is_returned():
    link, [request] = start(1)
    lose_core(link, 2, (1, 0))
    link.session.abort(request)
    assert take_turn(link, 2, 1) == [CandidatesWithheld(0)]


def test_a_client_that_was_dropped_in_its_turn_waits_for_another():
    link, [request] = start(1)
    lose_core(link, 2, (1, 0))
    take_turn(link, 2, 1)
    link.receive(Welcome(2, **LIMITS, known=False, failures=(CoreFailure(1, 0),)))
    sent = link.new()
    assert sent == [AbortRequests((1,)), CandidatesWithheld(1)]
    assert requests_in(take_turn(link, 2, 2)) == [(request.request_id, ISOLATION_TOKENS)]


def test_all_sequences_of_a_candidate_run_and_end_together():
    link = Link()
    request = link.session.submit([1], SamplingParams(n=2, max_tokens=400))
    link.new()
    lose_core(link, 2, (1, 0))
    take_turn(link, 2, 1)
    link.receive(output(2, 1, 0, list(range(ISOLATION_TOKENS))))
    assert CandidatesWithheld not in link.kinds()
    lose_core(link, 3, (1, 0), (2, 1))
    take_turn(link, 3, 1)
    lose_core(link, 4, (1, 0), (2, 1), (3, 1))
    assert [stream.last.finish_reason for stream in request.streams] == [FinishReason.ERROR] * 2
    assert request.take().token_ids == list(range(ISOLATION_TOKENS)), "what came before stays"
