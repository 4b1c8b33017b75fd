"""The session under a clock of the test: which messages it sends, and when."""

import msgspec
import pytest

from paged_serve.protocol.errors import EngineDead, InvalidRequest, ProtocolError
from paged_serve.protocol.messages.engine_core import (
    AbortRequests,
    ClientHeartbeat,
    CoreFailure,
    EngineCoreRequest,
    EngineFailed,
    EngineHeartbeat,
    OutputsReceived,
    RejectReason,
    RequestRejected,
    Utility,
    UtilityCall,
    UtilityResult,
    Welcome,
)
from paged_serve.protocol.messages.message import Hello, pack_ids, unpack_ids
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

from ..fake_core import LIMITS, output
from .session_link import PARAMS, Link


def test_hello_comes_first_and_again_each_second_until_welcome():
    link = Link(welcome=False)
    link.session.submit([1], PARAMS)
    assert link.kinds() == [Hello]
    for _ in range(3):
        link.pass_time(1.0, heartbeats=False)
        assert link.kinds() == [Hello]
    link.receive(Welcome(1, **LIMITS))
    assert link.kinds() == [EngineCoreRequest]


def test_the_first_welcome_has_a_time_limit():
    link = Link(welcome=False, timeout_s=3.0)
    request = link.session.submit([1], PARAMS)
    link.pass_time(2.5, heartbeats=False)
    assert link.session.error is None
    link.pass_time(1.0, heartbeats=False)
    assert isinstance(request.error, EngineDead)
    assert isinstance(link.session.submit([1], PARAMS).error, EngineDead)


def test_the_lease_is_kept_once_a_second():
    link = Link()
    link.pass_time(10.0)
    assert link.new() == [ClientHeartbeat()]  # unsent heartbeats do not accumulate
    for _ in range(10):
        link.pass_time(1.0)
        assert link.new() == [ClientHeartbeat()]


def test_credits_go_back_together_or_when_idle():
    link = Link()
    link.session.submit([1], SamplingParams(max_tokens=None))
    link.new()
    for position in range(40):
        link.receive(output(1, 1, position, [5]))
    assert link.new() == [OutputsReceived(32)]
    link.receive(EngineHeartbeat(1))
    assert link.new() == [OutputsReceived(8)]


def test_frames_of_another_epoch_earn_no_credit():
    link = Link()
    for position in range(40):
        link.receive(output(0, 1, position, [5]))
    link.receive(EngineHeartbeat(1))
    assert link.new() == []


def test_silence_leads_to_a_probe_then_absence_then_an_error():
    link = Link()
    link.pass_time(1.5, heartbeats=False)
    assert (link.session.ready, Hello in link.kinds()) == (True, True)
    link.pass_time(1.0, heartbeats=False)
    assert (link.session.ready, link.session.error) == (False, None)
    link.pass_time(8.0, heartbeats=False)
    assert isinstance(link.session.error, EngineDead)


def test_a_core_whose_end_of_the_link_closed_is_absent_at_once():
    link = Link()
    link.now += 0.2
    link.session.unplugged(link.now)
    assert (link.session.ready, link.kinds()) == (False, [Hello])


def test_a_briefly_full_queue_does_not_count_as_absence():
    link = Link()
    link.now += 0.05
    link.session.unplugged(link.now)
    assert link.session.ready


def test_a_core_without_workers_is_not_computing_until_a_new_welcome():
    link = Link()
    assert link.session.computes
    link.receive(EngineHeartbeat(0, None, computes=False))
    assert (link.session.ready, link.session.computes) == (True, False)
    link.receive(Welcome(2, **LIMITS))
    assert link.session.computes


def test_a_pause_of_the_client_does_not_count_as_silence_of_the_engine():
    link = Link()
    link.now += 4.0  # the process was stopped
    link.session.tick(link.now)
    assert link.session.ready


def test_requests_are_not_sent_twice_to_the_same_core_after_a_silence():
    link = Link()
    link.session.submit([1], PARAMS)
    link.new()
    link.pass_time(3.0, heartbeats=False)
    link.receive(Welcome(1, **LIMITS))
    assert EngineCoreRequest not in link.kinds()


@pytest.mark.parametrize("epoch", [0, 3, 4], ids=["lower", "equal", "higher"])
def test_another_server_at_the_address_gets_every_request_whatever_its_epoch(epoch):
    link = Link(welcome=False)
    link.receive(Welcome(3, **LIMITS, run="first", model="m"))
    begun, waiting = (link.session.submit([p], PARAMS) for p in (1, 2))
    link.receive(output(3, 1, 0, [5, 6]))
    link.receive(EngineFailed("gone"))
    link.new()
    failures = (CoreFailure(3, 0),)  # of this server: they do not concern the requests of the other
    link.receive(Welcome(epoch, **LIMITS, known=False, failures=failures, run="second", model="m"))
    assert link.session.ready
    sent = [message for message in link.new() if isinstance(message, EngineCoreRequest)]
    assert [(m.request_id, m.resume_token_ids, m.resumed) for m in sent] == [
        (1, (pack_ids([5, 6]),), True),
        (2, (), True),
    ]
    link.receive(output(epoch, 1, 2, [7], FinishReason.STOP))
    assert begun.streams[0].received.tolist() == [5, 6, 7]
    assert (begun.num_unfinished, waiting.num_unfinished) == (0, 1)


def test_tokens_of_another_model_are_not_continued():
    link = Link(welcome=False)
    link.receive(Welcome(0, **LIMITS, run="first", model="m"))
    begun, waiting = (link.session.submit([p], PARAMS) for p in (1, 2))
    link.receive(output(0, 1, 0, [5, 6]))
    link.new()
    link.receive(Welcome(0, **LIMITS, known=False, run="second", model="another"))
    assert "another model" in str(begun.error)
    assert waiting.error is None
    assert [m.request_id for m in link.new() if isinstance(m, EngineCoreRequest)] == [2]


def test_a_new_core_gets_every_unfinished_request_with_what_was_received():
    link = Link()
    requests = [link.session.submit([p], SamplingParams(n=2, max_tokens=8)) for p in (1, 2)]
    link.receive(output(1, 1, 0, [5, 6]))
    link.receive(output(1, 2, 0, [7], FinishReason.STOP))
    link.receive(output(1, 3, 0, [], FinishReason.STOP))
    link.receive(output(1, 4, 0, [], FinishReason.STOP))
    link.receive(EngineFailed("gone"))
    link.new()
    link.receive(Welcome(2, **LIMITS))
    again, abort = link.new()
    assert again.request_id == requests[0].request_id
    assert [list(unpack_ids(ids)) for ids in again.resume_token_ids] == [[5, 6], [7]]
    assert again.resumed
    assert abort == AbortRequests((2,))  # sequence 1 has ended; only the other is aborted


def test_requests_submitted_while_the_core_is_away_are_sent_to_the_next():
    link = Link()
    link.receive(EngineFailed("gone"))
    link.session.submit([1], PARAMS)
    assert link.kinds() == [Hello]
    link.receive(Welcome(2, **LIMITS))
    [request] = link.new()
    assert isinstance(request, EngineCoreRequest)
    assert not request.resumed


def test_an_abort_that_no_core_can_confirm_ends_the_stream_here():
    link = Link()
    requests = [link.session.submit([1], PARAMS) for _ in range(3)]
    link.new()
    link.session.abort(requests[0], finish_reason=FinishReason.STOP)
    assert requests[0].take() is None  # the core will confirm
    link.receive(EngineFailed("gone"))
    assert requests[0].take().finish_reason == FinishReason.STOP
    link.session.abort(requests[1])
    assert requests[1].take().finish_reason == FinishReason.ABORT
    link.new()
    link.receive(Welcome(2, **LIMITS))
    assert [message.request_id for message in link.new()] == [requests[2].request_id]


def test_a_request_to_a_full_new_core_is_retried_later():
    link = Link()
    accepted = link.session.submit([1], PARAMS)
    link.receive(EngineFailed("gone"))
    link.new()
    link.receive(Welcome(2, **LIMITS))
    link.new()
    link.receive(RequestRejected(accepted.request_id, RejectReason.OVERLOADED, "full", retry_after_s=2.0))
    assert accepted.error is None
    link.pass_time(1.75)
    assert EngineCoreRequest not in link.kinds()
    link.pass_time(0.5)
    assert EngineCoreRequest in link.kinds()
    link.receive(RequestRejected(accepted.request_id, RejectReason.OVERLOADED, "full", retry_after_s=2.0))
    link.session.abort(accepted)
    assert accepted.take().finish_reason == FinishReason.ABORT


def test_a_call_survives_the_core_that_it_was_sent_to():
    link = Link()
    pending, ended = (link.session.call(Utility.STATS) for _ in range(2))
    assert link.kinds() == [UtilityCall] * 2
    with pytest.raises(EngineDead, match="in time"):
        link.session.end_call(ended)
    link.receive(EngineFailed("gone"))
    while_away = link.session.call(Utility.RESET_PREFIX_CACHE)
    link.receive(Welcome(2, **LIMITS))
    assert [message for message in link.new() if isinstance(message, UtilityCall)] == [pending.call, while_away.call]
    link.receive(UtilityResult(pending.call.call_id, b"{}"))
    assert link.session.end_call(pending) == b"{}"
    assert not while_away.done


def test_a_message_that_cannot_be_sent_yet_keeps_its_order():
    link = Link()
    for prompt in ([1], [2]):
        link.session.submit(prompt, PARAMS)
    link.session.flush(lambda message: False)
    assert link.session.backlog
    assert [list(unpack_ids(message.prompt_token_ids)) for message in link.new()] == [[1], [2]]
    assert not link.session.backlog


def test_a_request_too_large_for_the_link_fails_alone():
    link = Link()
    large, small = (link.session.submit([p], PARAMS) for p in (1, 2))

    def send(message):
        if message.request_id == 1:
            raise ProtocolError("5 MB")
        return True

    link.session.flush(send)
    assert isinstance(large.error, InvalidRequest)
    assert small.error is None


def test_a_frame_whose_columns_do_not_fit_is_counted_and_its_loss_repaired():
    link = Link()
    request = link.session.submit([1], PARAMS)
    link.new()
    broken = output(1, 1, 0, [5])
    msgspec.structs.force_setattr(broken.outputs[0], "token_ids", b"\0\0\0")  # a decoder would refuse it
    link.receive(broken)
    assert link.session.num_invalid == 1
    link.receive(output(1, 1, 1, [6]))
    abort, again = link.new()
    assert abort == AbortRequests((1,))
    assert (again.request_id, again.resume_token_ids) == (2, ())
    link.receive(output(1, 2, 0, [5, 6], FinishReason.STOP))
    assert request.take().token_ids == [5, 6]
