"""A session whose link was away: what it sends to a core that knows the client, and to one that does not."""

import pytest

from paged_serve.frontend.client.wire import Wire
from paged_serve.protocol.errors import EngineDead
from paged_serve.protocol.messages.engine_core import (
    AbortRequests,
    EngineCoreRequest,
    RejectReason,
    RequestRejected,
    Utility,
    UtilityCall,
    Welcome,
)
from paged_serve.protocol.messages.message import Hello, unpack_ids
from paged_serve.protocol.messages.sampling_params import FinishReason
from paged_serve.protocol.transport.channel import DealerChannel

from ..fake_core import LIMITS, output
from .session_link import PARAMS, Link


def a_link_that_was_away(side, seconds):
    link = Link(away_s=60.0)
    request = link.session.submit([1], PARAMS)
    link.receive(output(1, 1, 0, [5]))
    link.new()
    if side == "client":
        link.now += seconds
        link.session.tick(link.now)
    else:
        link.pass_time(seconds, heartbeats=False)
    assert not link.session.ready
    assert link.kinds() == [Hello]
    return link, request


@pytest.mark.parametrize(("side", "seconds"), [("client", 20.0), ("core", 20.0), ("core", 2.5)])
def test_requests_are_sent_again_to_a_core_that_does_not_know_the_client(side, seconds):
    link, request = a_link_that_was_away(side, seconds)
    link.receive(Welcome(1, **LIMITS, known=False))
    abort, again = (message for message in link.new() if isinstance(message, (AbortRequests, EngineCoreRequest)))
    assert abort == AbortRequests((1,))
    assert (again.request_id, list(unpack_ids(again.resume_token_ids[0]))) == (2, [5])
    link.receive(output(1, 2, 1, [6], FinishReason.STOP))
    assert request.take().token_ids == [5, 6]


@pytest.mark.parametrize(("side", "seconds"), [("client", 20.0), ("core", 20.0), ("core", 2.5)])
def test_a_core_that_knows_the_client_continues_its_streams(side, seconds):
    link, request = a_link_that_was_away(side, seconds)
    link.receive(Welcome(1, **LIMITS))
    assert EngineCoreRequest not in link.kinds()
    link.receive(output(1, 1, 1, [6], FinishReason.STOP))
    assert request.take().token_ids == [5, 6]


@pytest.mark.parametrize(("away_s", "is_lost"), [(None, False), (600.0, True)])
def test_the_restart_of_a_server_on_this_host_may_take_an_hour(run_dir, away_s, is_lost):
    wire = Wire.connect(DealerChannel, run_dir, None, "client", 0, timeout_s=60.0, away_s=away_s, context=None)
    session, now = wire.session, 100.0
    session.receive(Welcome(1, **LIMITS), now)
    request = session.submit([1], PARAMS)
    while now < 3700.0:
        now += 0.5
        session.tick(now)
    assert not session.ready
    assert isinstance(request.error, EngineDead) == is_lost
    wire.close()


def test_a_request_that_the_core_failed_to_accept_raises_engine_dead():
    link = Link()
    request = link.session.submit([1], PARAMS)
    link.receive(RequestRejected(1, RejectReason.FAILED, "the engine failed to take this request; its log says why"))
    assert isinstance(request.error, EngineDead)


def test_a_call_is_sent_again_to_a_core_that_does_not_know_the_client():
    link = Link()
    sent = link.session.call(Utility.STATS)
    link.new()
    waiting = link.session.call(Utility.DUMP_STATE)
    link.receive(Welcome(1, **LIMITS, known=False))
    calls = [message for message in link.new() if isinstance(message, UtilityCall)]
    assert sorted(calls, key=lambda call: call.call_id) == [sent.call, waiting.call]


def test_a_request_aborted_meanwhile_is_not_sent_again():
    link = Link()
    request = link.session.submit([1], PARAMS)
    link.new()
    link.session.abort(request)
    link.pass_time(8.0, heartbeats=False)
    link.receive(Welcome(1, **LIMITS))
    assert EngineCoreRequest not in link.kinds()
    assert (request.take().finish_reason, link.session.table.requests) == (FinishReason.ABORT, {})


def test_a_request_that_ended_while_the_core_was_away_is_aborted_there():
    link = Link()
    request = link.session.submit([1], PARAMS)
    link.pass_time(3.0, heartbeats=False)
    link.new()
    link.session.abort(request)
    assert request.take().finish_reason == FinishReason.ABORT
    link.receive(Welcome(1, **LIMITS))
    assert AbortRequests((1,)) in link.new()
