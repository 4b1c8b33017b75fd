"""Isolation turns: one candidate at a time runs alone, and no deferred message is lost."""

import pytest

from paged_serve.engine_core.admission.core_poison import IDLE_TURN_S, CorePoison
from paged_serve.engine_core.scheduling.worker_poison import WorkerPoison
from paged_serve.protocol.messages.engine_core import AbortRequests, EngineCoreRequest, RejectReason
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

A, B = b"a", b"b"


def request(request_id, isolation_tokens=0, ttl_s=0.0):
    return EngineCoreRequest(
        request_id, pack_ids([1]), SamplingParams(), isolation_tokens=isolation_tokens, ttl_s=ttl_s
    )


def taken(core_poison, now):
    return iter(lambda: core_poison.take_deferred(now), None)


def next_turn(core_poison, now=0.0):
    """The next turn, with a supervisor that records it at once."""
    core_poison.record(core_poison.turn_number)
    return core_poison.next_turn(now)


@pytest.fixture
def core_poison():
    return CorePoison(WorkerPoison(), max_deferred=2)


def test_clients_take_turns_and_turn_numbers_are_known_in_advance(core_poison):
    assert (core_poison.turn_number, next_turn(core_poison)) == (0, None)
    core_poison.candidates_withheld(A, 2)
    core_poison.candidates_withheld(B, 1)
    assert (core_poison.turn_number, next_turn(core_poison), core_poison.turn_number) == (1, A, 1)
    assert next_turn(core_poison) is None
    core_poison.candidates_withheld(A, 1)
    assert (core_poison.turn_number, next_turn(core_poison), core_poison.turn_number) == (2, B, 2)
    core_poison.candidates_withheld(B, 0)
    assert (core_poison.turn_number, next_turn(core_poison)) == (3, A)
    core_poison.candidates_withheld(A, 0)
    core_poison.record(0)
    assert (core_poison.turn_number, core_poison.is_over) == (0, True)


def test_a_turn_begins_and_normal_work_continues_only_when_the_supervisor_has_recorded_it(core_poison):
    core_poison.candidates_withheld(A, 1)
    assert core_poison.next_turn(0.0) is None
    assert next_turn(core_poison) == A
    core_poison.candidates_withheld(A, 1)
    assert core_poison.next_turn(0.0) is None, "turn 1 is recorded, but turn 2 is the next"
    assert next_turn(core_poison) == A
    core_poison.defer(B, request(2), 0.0)
    core_poison.candidates_withheld(A, 0)
    assert core_poison.take_deferred(0.0) is None
    assert core_poison.worker_poison.is_closed
    core_poison.record(0)
    assert core_poison.take_deferred(0.0) == (B, request(2))
    assert not core_poison.worker_poison.is_closed


def test_only_the_candidate_in_its_turn_is_admitted_and_the_others_after_isolation(core_poison):
    core_poison.candidates_withheld(A, 1)
    next_turn(core_poison)
    assert core_poison.admits(A, request(1, isolation_tokens=8))
    for client, message in ((A, request(2)), (B, request(1, isolation_tokens=8))):
        assert not core_poison.admits(client, message)
        assert core_poison.defer(client, message, 0.0) == []
    assert core_poison.take_deferred(0.0) is None
    [(client, rejected)] = core_poison.defer(B, request(3), 0.0)
    assert (client, rejected.request_id, rejected.reason) == (B, 3, RejectReason.OVERLOADED)
    core_poison.candidates_withheld(A, 0)
    core_poison.record(0)
    assert [(client, message.request_id) for client, message in taken(core_poison, 0.0)] == [(A, 2), (B, 1)]
    assert core_poison.is_over


def test_an_abort_of_a_deferred_request_is_handled_after_it(core_poison):
    abort = AbortRequests((7,))
    core_poison.candidates_withheld(A, 1)
    core_poison.aborted(B, abort, 0.0)
    core_poison.defer(B, request(7), 0.0)
    core_poison.aborted(B, abort, 0.0)
    core_poison.candidates_withheld(A, 0)
    assert [type(message) for _, message in taken(core_poison, 0.0)] == [EngineCoreRequest, AbortRequests]


def test_deferred_time_counts_against_the_time_limit(core_poison):
    core_poison.candidates_withheld(A, 1)
    core_poison.defer(B, request(1, ttl_s=5.0), 10.0)
    core_poison.defer(B, request(2, ttl_s=1.0), 10.0)
    core_poison.candidates_withheld(A, 0)
    assert [message.ttl_s for _, message in taken(core_poison, 12.0)] == [3.0, 0.001]


@pytest.mark.parametrize("when", ["in line", "in its turn"])
def test_a_lost_client_delays_no_other(core_poison, when):
    core_poison.candidates_withheld(A, 1)
    core_poison.defer(A, request(1), 0.0)
    if when == "in its turn":
        next_turn(core_poison)
    core_poison.remove(A)
    core_poison.record(0)
    assert core_poison.is_over


def test_a_client_that_does_not_use_its_turn_gets_no_other(core_poison):
    core_poison.candidates_withheld(A, 1)
    core_poison.candidates_withheld(B, 1)
    assert next_turn(core_poison) == A
    assert next_turn(core_poison, IDLE_TURN_S) is None
    assert next_turn(core_poison, IDLE_TURN_S + 0.1) is None, "turn 2 must be recorded first"
    assert next_turn(core_poison, IDLE_TURN_S + 0.1) == B
    core_poison.candidates_withheld(A, 1)
    core_poison.candidates_withheld(B, 0)
    core_poison.record(0)
    assert core_poison.is_over


def test_a_candidate_runs_alone_until_its_client_returns_the_turn(drive):
    driver = drive()
    running = driver.add([1] * 5, max_tokens=20, seed=1)
    driver.step(3)
    core_poison, client = driver.engine.admission.core_poison, next(iter(driver.engine.clients))
    core_poison.candidates_withheld(client, 1)
    assert next_turn(core_poison, driver.now) == client
    before = len(driver.tokens[running])
    candidate = driver.add([2] * 5, max_tokens=20, seed=2, isolation_tokens=8)
    late = driver.add([3] * 5, max_tokens=20, seed=3)
    for _ in range(20):
        driver.step()
    assert len(driver.tokens[candidate]) == 8, "it runs no longer than necessary"
    assert (len(driver.tokens[running]), driver.tokens.get(late, [])) == (before, [])
    core_poison.candidates_withheld(client, 0)
    core_poison.record(0)
    for kept_by, message in taken(core_poison, driver.now):
        driver.take(driver.engine.add_request(kept_by, message, driver.now))
    driver.run()
    assert [len(driver.tokens[stream]) for stream in (running, candidate, late)] == [20, 20, 20]
    assert driver.ends[late].finish_reason is FinishReason.LENGTH


def test_deferred_messages_are_bounded_in_bytes():
    core_poison = CorePoison(WorkerPoison(), max_deferred=1000, max_deferred_bytes=1 << 20)
    core_poison.candidates_withheld(A, 1)
    large = EngineCoreRequest(1, bytes(300_000), SamplingParams())
    many_ids = EngineCoreRequest(2, pack_ids([1]), SamplingParams(allowed_token_ids=tuple(range(20_000))))
    assert [len(core_poison.defer(B, large, 0.0)) for _ in range(4)] == [0, 0, 0, 1]
    assert core_poison.defer(B, many_ids, 0.0), "ids in a tuple take ten times their bytes on the wire"
    core_poison.remove(B)
    assert core_poison.defer(A, many_ids, 0.0) == []


def test_an_abort_is_deferred_only_for_deferred_streams(core_poison):
    core_poison.candidates_withheld(A, 1)
    core_poison.defer(B, request(7), 0.0)
    core_poison.aborted(B, AbortRequests(tuple(range(60_000))), 0.0)
    core_poison.candidates_withheld(A, 0)
    assert [message for _, message in taken(core_poison, 0.0)][1] == AbortRequests((7,))
