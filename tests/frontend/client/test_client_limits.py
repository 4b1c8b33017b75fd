"""The limits of a client's requests: of time, and of memory for slow readers."""

from paged_serve.frontend.client.request_terms import RequestTerms
from paged_serve.protocol.errors import Overloaded, RequestExpired
from paged_serve.protocol.messages.engine_core import (
    AbortRequests,
    EngineCoreRequest,
    EngineFailed,
    RejectReason,
    RequestRejected,
    Welcome,
)
from paged_serve.protocol.messages.sampling_params import FinishReason

from ..fake_core import LIMITS, output
from .session_link import PARAMS, Link


def test_a_time_limit_is_sent_as_the_remaining_time():
    link = Link()
    request = link.session.submit([1], PARAMS, RequestTerms(timeout_s=5.0, tenant="t", weight=2.0), now=link.now)
    (message,) = link.new()
    assert (message.ttl_s, message.tenant, message.weight) == (5.0, "t", 2.0)
    link.pass_time(2.0)
    link.receive(EngineFailed("gone"))
    link.pass_time(1.0)
    link.receive(Welcome(2, **LIMITS))
    again = link.new()[-1]
    assert (type(again), again.ttl_s, again.tenant, again.weight) == (EngineCoreRequest, 2.0, "t", 2.0)
    link.receive(output(2, request.request_id, 0, [5]))
    link.receive(EngineFailed("gone"))
    link.pass_time(9.0)
    link.receive(Welcome(3, **LIMITS))
    assert link.new()[-1].ttl_s == 0.0  # it had its first token in time


def test_a_time_limit_ends_while_the_core_is_away():
    link = Link()
    terms = RequestTerms(timeout_s=5.0)
    silent, begun = (link.session.submit([p], PARAMS, terms, now=link.now) for p in (1, 2))
    link.receive(output(1, begun.request_id, 0, [5]))
    link.receive(EngineFailed("gone"))
    link.pass_time(4.5)
    assert silent.error is None
    link.pass_time(1.0)
    assert isinstance(silent.error, RequestExpired)
    assert silent.error.message.startswith("timeout=5: the engine is away")
    assert begun.error is None
    link.new()
    link.receive(Welcome(1, **LIMITS))  # the same core still has the request, for which no reader waits
    assert AbortRequests((silent.request_id,)) in link.new()


def test_only_the_core_expires_requests_while_it_is_connected():
    link = Link()
    request = link.session.submit([1], PARAMS, RequestTerms(timeout_s=1.0), now=link.now)
    link.pass_time(5.0)
    assert request.error is None
    link.receive(RequestRejected(request.request_id, RejectReason.EXPIRED, "timeout=1: it waited", "timeout"))
    assert isinstance(request.error, RequestExpired)
    assert (request.error.message, request.error.param) == ("timeout=1: it waited", "timeout")


def test_requests_whose_readers_are_slow_are_shed_the_largest_first():
    link = Link()
    requests = [link.session.submit([1], PARAMS) for _ in range(3)]
    finished, large, small = (request.request_id for request in requests)
    for stream_id, count in ((finished, 200), (large, 900), (small, 10)):
        link.receive(output(1, stream_id, 0, [5] * count, FinishReason.LENGTH if stream_id == finished else None))
    undelivered = link.session.table.undelivered
    assert undelivered.num_bytes == 4 * 1110
    link.new()
    link.session.shed(4 * 1000, Overloaded("too slow", 1.0))
    assert undelivered.num_bytes == 4 * 10
    assert [type(request.error) for request in requests] == [Overloaded, Overloaded, type(None)]
    assert [request.take() is None for request in requests] == [True, True, False]
    assert [message.stream_ids for message in link.new() if isinstance(message, AbortRequests)] == [(large,)]
    assert undelivered.num_bytes == 0
