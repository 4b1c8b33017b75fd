"""The stream table: any sequence of valid frames yields exactly the tokens, once, in order."""

import contextlib
import gc

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_serve.frontend.client.streams.stream_table import StreamTable
from paged_serve.protocol.errors import EngineDead
from paged_serve.protocol.messages.engine_core import EngineCoreOutputs, Logprobs, TokenColumns
from paged_serve.protocol.messages.message import MAX_FRAME_BYTES, pack_ids, pack_int64, unpack_ids
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

from ..fake_core import columns, output
from .streaming_engine import Engine, logprobs_of

NUM_EXAMPLES = [100, pytest.param(300, marks=pytest.mark.nightly)]


@pytest.mark.parametrize("num_examples", NUM_EXAMPLES)
def test_any_sequence_of_valid_frames_yields_exactly_the_tokens(num_examples):
    settings(max_examples=num_examples, deadline=None)(given(st.data())(check_valid_frames))()


def check_valid_frames(data):
    table = StreamTable()
    engines = [Engine(data, table) for _ in range(data.draw(st.integers(1, 3), label="requests"))]
    history = []
    for _ in range(data.draw(st.integers(0, 15), label="frames")):
        action = data.draw(st.sampled_from(["send", "repeat", "read"]))
        engine = data.draw(st.sampled_from(engines))
        if action == "send":
            history.append(engine.frame())
            table.receive(history[-1])
        elif action == "repeat" and history:
            table.receive(data.draw(st.sampled_from(history)))
        elif action == "read":
            engine.read()
    for engine in engines:
        table.receive(engine.close())
        engine.read()
        assert engine.request.done
        for truth in engine.truths:
            assert truth.read == truth.tokens
            assert truth.reasons == [FinishReason.STOP]
            if engine.logprobs:
                assert [entry.token_ids for entry in truth.read_logprobs] == [[t, t + 1] for t in truth.tokens]
                assert [entry.logprobs for entry in truth.read_logprobs] == [
                    [-t / 2, -(t + 1) / 2] for t in truth.tokens
                ]
    assert not table.broken
    assert not table.requests
    assert not table.streams


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_lost_frame_never_yields_a_wrong_token_and_resuming_completes_the_stream(data):
    table = StreamTable()
    length = data.draw(st.integers(1, 15))
    tokens = [7 * position for position in range(length)]
    request = table.add([1], SamplingParams(max_tokens=None))
    lost = data.draw(st.sets(st.integers(0, length - 1)))
    as_columns = data.draw(st.booleans())
    for position in (p for p in range(length) if p not in lost):
        frame = (
            columns(1, position, [(1, 0, tokens[position])])
            if as_columns
            else output(1, 1, position, [tokens[position]])
        )
        table.receive(frame)
    table.receive(output(1, 1, length, [], FinishReason.STOP))
    assert bool(table.broken) == bool(lost)
    if lost:
        table.renumber(request)
        assert table.stream_ids(request) == (2,)
        resume = unpack_ids(table.message(request, 0.0).resume_token_ids[0]) if min(lost) else []
        assert list(resume) == tokens[: min(lost)]
        table.receive(output(1, 1, 0, tokens, FinishReason.STOP))  # late output of the old stream has no effect
        table.receive(output(1, 2, len(resume), tokens[len(resume) :], FinishReason.STOP))
    read = []
    while (delta := request.take()) is not None:
        read += delta.token_ids
    assert (read, request.done) == (tokens, True)


@pytest.mark.parametrize("num_examples", NUM_EXAMPLES)
def test_columns_of_any_bytes_raise_nothing_but_value_error(num_examples):
    settings(max_examples=num_examples, deadline=None)(given(st.data())(check_any_bytes))()


def check_any_bytes(data):
    table = StreamTable()
    requests = [table.add([1], SamplingParams()) for _ in range(3)]
    for _ in range(5):
        table.receive(columns(1, 0, [(1, 0, 4)]))
        anything = st.binary(max_size=40)
        ids = data.draw(anything | st.just(pack_int64([1, 2])))
        firsts, tokens = (data.draw(anything | st.just(pack_ids([0, 0]))) for _ in range(2))
        advance = data.draw(st.sampled_from([0, 1, 2**62]))
        with contextlib.suppress(ValueError):
            table.receive(EngineCoreOutputs(1, 0, TokenColumns(ids, firsts, advance, tokens)))
    assert len(requests[0].streams[0].received) >= 1


def test_columns_still_reach_the_others_when_a_stream_ends_between_two_equal_frames():
    table = StreamTable()
    first, second = (table.add([1], SamplingParams()) for _ in range(2))
    table.receive(columns(1, 0, [(1, 0, 4), (2, 0, 5)]))
    table.receive(output(1, 1, 1, [], FinishReason.STOP))
    table.receive(columns(1, 1, [(1, 0, 6), (2, 0, 7)]))
    assert (first.take().token_ids, second.take().token_ids) == ([4], [5, 7])
    assert first.done


def test_outputs_of_the_same_frame_may_come_before_its_columns():
    table = StreamTable()
    request = table.add([1], SamplingParams())
    frame = columns(1, 2, [(1, 0, 30)])
    table.receive(EngineCoreOutputs(1, 0, frame.columns, output(1, 1, 0, [10, 20]).outputs))
    assert request.take().token_ids == [10, 20, 30]
    assert not table.broken


def test_a_repeated_frame_changes_nothing():
    table = StreamTable()
    request = table.add([1], SamplingParams())
    table.receive(output(1, 1, 0, [5, 6]))
    assert request.take().token_ids == [5, 6]
    for position, ids in ((0, [5, 6]), (0, [5]), (2, [])):
        table.receive(output(1, 1, position, ids))
        assert request.take() is None


def test_facts_of_the_first_output_are_sent_once_and_kept():
    table = StreamTable()
    request = table.add([1, 2, 3], SamplingParams(prompt_logprobs=1))
    frame = output(1, 1, 0, [5], prompt_logprobs=logprobs_of([2, 3]), num_cached_tokens=2)
    table.receive(frame)
    first = request.take()
    table.receive(output(2, 1, 1, [6], prompt_logprobs=logprobs_of([2, 3]), num_cached_tokens=3))  # after a restart
    second = request.take()
    assert [entry.token_ids for entry in first.prompt_logprobs] == [[2, 3], [3, 4]]
    assert second.prompt_logprobs is None
    assert (first.num_cached_tokens, second.num_cached_tokens) == (2, 2)


def test_tokens_before_an_error_are_still_delivered():
    table = StreamTable()
    request = table.add([1], SamplingParams())
    table.receive(output(1, 1, 0, [5]))
    table.fail(request, EngineDead("gone"))
    assert request.ended
    assert not request.done
    assert request.take().token_ids == [5]
    assert request.done


def test_a_resumed_request_names_the_sequences_that_need_nothing_more():
    table = StreamTable()
    request = table.add([1], SamplingParams(n=3))
    table.receive(output(1, 1, 0, [5, 6], FinishReason.STOP))
    table.receive(output(1, 2, 0, [7]))
    assert [list(unpack_ids(ids)) for ids in table.message(request, 0.0).resume_token_ids] == [[5, 6], [7], []]
    assert table.finished_ids(request) == (1,)


@pytest.mark.parametrize("wrong", [pack_ids([1, 2, 3]), b"\0" * 7])
def test_logprobs_that_do_not_fit_their_tokens_change_nothing(wrong):
    table = StreamTable()
    request = table.add([1], SamplingParams(logprobs=1))
    with pytest.raises(ValueError, match=r"logprobs|bytes"):
        table.receive(output(1, 1, 0, [5, 6], logprobs=Logprobs(wrong, wrong, pack_ids([1, 1]))))
    assert request.take() is None
    assert len(request.streams[0].received) == 0


def test_an_aborted_stream_ends_as_aborted_even_when_its_own_end_came_first():
    table = StreamTable()
    request = table.add([1], SamplingParams())
    table.abort(request.streams[0], FinishReason.ABORT)
    table.receive(output(1, 1, 0, [5], FinishReason.LENGTH))
    delta = request.take()
    assert (delta.token_ids, delta.finish_reason) == ([], FinishReason.ABORT)


@pytest.mark.parametrize("ends", [True, False])
def test_an_ended_request_leaves_no_reference_cycle(ends):
    """With ten thousand connections, a full collection stops a frontend for 0.15 s."""
    table = StreamTable()
    gc.collect()
    for _ in range(10):
        request = table.add([1, 2], SamplingParams(n=2))
        ids = table.stream_ids(request)
        if ends:
            for stream_id in ids:
                table.receive(output(0, stream_id, 0, [5], FinishReason.LENGTH))
        else:
            table.fail(request, EngineDead("gone"))
        while request.take() is not None:
            pass
        assert request.done
        del request
    assert gc.collect() == 0


def test_cached_tokens_are_those_that_were_cached_before_the_request_came():
    """The other sequences find the blocks that the first one has just computed."""
    table = StreamTable()
    request = table.add([1] * 90, SamplingParams(n=3, temperature=1.0))
    table.receive(output(1, 2, 0, [5], num_cached_tokens=80))
    table.receive(output(1, 1, 0, [5], num_cached_tokens=16))
    table.receive(output(1, 3, 0, [5], num_cached_tokens=80))
    cached = {}
    while (delta := request.take()) is not None:
        cached[delta.index] = delta.num_cached_tokens
    assert cached == {0: 16, 1: 16, 2: 16}


def test_logprobs_wait_packed_and_come_in_portions():
    table = StreamTable()
    request = table.add([1], SamplingParams(logprobs=1))
    ids = [*range(300)]
    table.receive(output(1, 1, 0, ids[:200], logprobs=logprobs_of(ids[:200])))
    table.receive(output(1, 1, 200, ids[200:], FinishReason.LENGTH, logprobs=logprobs_of(ids[200:])))
    assert table.undelivered.num_bytes == request.undelivered_bytes > 300 * 24
    deltas = []
    while (delta := request.take()) is not None:
        deltas.append(delta)
    assert [len(delta.token_ids) for delta in deltas] == [128, 128, 44]
    assert [token for delta in deltas for token in delta.token_ids] == ids
    assert [entry.token_ids[0] for delta in deltas for entry in delta.logprobs] == ids
    assert [delta.finish_reason for delta in deltas] == [None, None, FinishReason.LENGTH]
    assert table.undelivered.num_bytes == request.undelivered_bytes == 0


def test_output_for_a_reader_that_has_gone_is_freed():
    table = StreamTable()
    request = table.add([1], SamplingParams(logprobs=1, prompt_logprobs=1))
    table.receive(output(1, 1, 0, [5, 6], logprobs=logprobs_of([5, 6]), prompt_logprobs=logprobs_of([2])))
    assert table.undelivered.num_bytes > 0
    table.abort(request.streams[0], FinishReason.ABORT)
    table.drop_undelivered(request)
    assert table.undelivered.num_bytes == 0
    assert request.take() is None


@pytest.mark.parametrize("isolation_tokens", [0, 8])
def test_a_request_with_many_long_outputs_is_resumed_in_one_frame(isolation_tokens):
    table = StreamTable()
    request = table.add([1] * 1000, SamplingParams(n=128))
    for stream in request.streams:
        stream.received.extend(range(8200))
    message = table.message(request, 0.0, isolation_tokens)
    assert len(msgspec.msgpack.encode(message)) <= MAX_FRAME_BYTES
    for ids in message.resume_token_ids:
        assert len(ids) > 4 * 6000
        assert unpack_ids(ids).tolist() == list(range(len(ids) // 4))
        assert message.isolation_tokens == (8200 - len(ids) // 4 + 8 if isolation_tokens else 0)
