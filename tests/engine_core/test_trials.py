"""Turns: one suspect at a time, nobody beside it, and nothing that was said meanwhile is lost."""

import pytest

from paged_serve.engine_core.admission.core_poison import IDLE_TURN_S, Trials
from paged_serve.engine_core.scheduling.worker_poison import Quarantine
from paged_serve.protocol.messages.engine_core import AbortRequests, EngineCoreRequest, RejectReason
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

A, B = b"a", b"b"


def request(request_id, trial_tokens=0, ttl_s=0.0):
    return EngineCoreRequest(request_id, pack_ids([1]), SamplingParams(), trial_tokens=trial_tokens, ttl_s=ttl_s)


def taken(trials, now):
    return iter(lambda: trials.take_kept(now), None)


@pytest.fixture
def trials():
    return Trials(Quarantine(), max_kept=2)


def test_clients_take_turns_and_each_turn_has_a_number_that_is_known_before(trials):
    assert (trials.turn, trials.next_turn(0.0)) == (0, None)
    trials.suspects_held(A, 2)
    trials.suspects_held(B, 1)
    assert (trials.turn, trials.next_turn(0.0), trials.turn) == (1, A, 1)
    assert trials.next_turn(0.0) is None
    trials.suspects_held(A, 1)
    assert (trials.turn, trials.next_turn(0.0), trials.turn) == (2, B, 2)
    trials.suspects_held(B, 0)
    assert (trials.turn, trials.next_turn(0.0)) == (3, A)
    trials.suspects_held(A, 0)
    assert (trials.turn, trials.is_over) == (0, True)


def test_only_the_suspect_in_its_turn_gets_in_and_the_others_when_all_is_over(trials):
    trials.suspects_held(A, 1)
    trials.next_turn(0.0)
    assert trials.admits(A, request(1, trial_tokens=8))
    for client, message in ((A, request(2)), (B, request(1, trial_tokens=8))):
        assert not trials.admits(client, message)
        assert trials.keep(client, message, 0.0) == []
    assert trials.take_kept(0.0) is None
    [(client, rejected)] = trials.keep(B, request(3), 0.0)
    assert (client, rejected.request_id, rejected.reason) == (B, 3, RejectReason.OVERLOADED)
    trials.suspects_held(A, 0)
    assert [(client, message.request_id) for client, message in taken(trials, 0.0)] == [(A, 2), (B, 1)]
    assert trials.is_over


def test_an_abort_of_what_is_kept_is_said_again_behind_it(trials):
    abort = AbortRequests((7,))
    trials.suspects_held(A, 1)
    trials.aborted(B, abort, 0.0)
    trials.keep(B, request(7), 0.0)
    trials.aborted(B, abort, 0.0)
    trials.suspects_held(A, 0)
    assert [type(message) for _, message in taken(trials, 0.0)] == [EngineCoreRequest, AbortRequests]


def test_who_waits_here_has_less_time_left(trials):
    trials.suspects_held(A, 1)
    trials.keep(B, request(1, ttl_s=5.0), 10.0)
    trials.keep(B, request(2, ttl_s=1.0), 10.0)
    trials.suspects_held(A, 0)
    assert [message.ttl_s for _, message in taken(trials, 12.0)] == [3.0, 0.001]


@pytest.mark.parametrize("when", ["in line", "in its turn"])
def test_a_client_that_is_gone_holds_nobody_up(trials, when):
    trials.suspects_held(A, 1)
    trials.keep(A, request(1), 0.0)
    if when == "in its turn":
        trials.next_turn(0.0)
    trials.forget(A)
    assert trials.is_over


def test_a_client_that_does_nothing_with_its_turn_gets_no_other(trials):
    trials.suspects_held(A, 1)
    trials.suspects_held(B, 1)
    assert trials.next_turn(0.0) == A
    assert trials.next_turn(IDLE_TURN_S) is None
    assert trials.next_turn(IDLE_TURN_S + 0.1) == B
    trials.suspects_held(A, 1)
    trials.suspects_held(B, 0)
    assert trials.is_over


def test_a_suspect_runs_alone_until_its_client_is_content(drive):
    driver = drive()
    running = driver.add([1] * 5, max_tokens=20, seed=1)
    driver.step(3)
    trials, client = driver.engine.trials, next(iter(driver.engine.clients))
    trials.suspects_held(client, 1)
    assert trials.next_turn(driver.now) == client
    before = len(driver.tokens[running])
    suspect = driver.add([2] * 5, max_tokens=20, seed=2, trial_tokens=8)
    late = driver.add([3] * 5, max_tokens=20, seed=3)
    for _ in range(20):
        driver.step()
    assert len(driver.tokens[suspect]) == 8, "it goes no further than it must"
    assert (len(driver.tokens[running]), driver.tokens.get(late, [])) == (before, [])
    trials.suspects_held(client, 0)
    for kept_by, message in taken(trials, driver.now):
        driver.take(driver.engine.add_request(kept_by, message, driver.now))
    driver.run()
    assert [len(driver.tokens[stream]) for stream in (running, suspect, late)] == [20, 20, 20]
    assert driver.ends[late].finish_reason is FinishReason.LENGTH


def test_what_is_kept_is_bounded_in_bytes_too():
    trials = Trials(Quarantine(), max_kept=1000, max_kept_bytes=1 << 20)
    trials.suspects_held(A, 1)
    large = EngineCoreRequest(1, bytes(300_000), SamplingParams())
    many_ids = EngineCoreRequest(2, pack_ids([1]), SamplingParams(allowed_token_ids=tuple(range(20_000))))
    assert [len(trials.keep(B, large, 0.0)) for _ in range(4)] == [0, 0, 0, 1]
    assert trials.keep(B, many_ids, 0.0), "ids in a tuple take ten times their bytes on the wire"
    trials.forget(B)
    assert trials.keep(A, many_ids, 0.0) == []


def test_an_abort_is_kept_for_the_streams_that_are_kept_alone(trials):
    trials.suspects_held(A, 1)
    trials.keep(B, request(7), 0.0)
    trials.aborted(B, AbortRequests(tuple(range(60_000))), 0.0)
    trials.suspects_held(A, 0)
    assert [message for _, message in taken(trials, 0.0)][1] == AbortRequests((7,))
