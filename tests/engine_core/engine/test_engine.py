"""The lifecycle of a request as seen by its client."""

import pytest

from paged_serve.engine_core.engine.engine import CLIENT_LEASE_S
from paged_serve.protocol.messages.message import unpack_ids, unpack_int64
from paged_serve.protocol.messages.sampling_params import FinishReason

from ..conftest import CLIENT, EOS
from .changed_answers import advance, with_token

OTHER = b"client:1"


@pytest.mark.parametrize(
    ("params", "reason", "stop_token_id"),
    [
        ({"ignore_eos": False}, FinishReason.STOP, None),
        ({"ignore_eos": True, "stop_token_ids": (EOS,)}, FinishReason.STOP, EOS),
        ({"ignore_eos": False, "stop_token_ids": (EOS,)}, FinishReason.STOP, None),
        ({"ignore_eos": True}, None, None),
        ({"ignore_eos": False, "min_tokens": 3}, None, None),
        ({"ignore_eos": False, "min_tokens": 2}, FinishReason.STOP, None),
        ({"ignore_eos": True, "max_tokens": 3}, FinishReason.LENGTH, None),
        ({"ignore_eos": False, "max_tokens": 3}, FinishReason.STOP, None),
    ],
)
def test_a_sequence_ends_at_its_third_token_exactly_when_a_stop_condition_holds(drive, params, reason, stop_token_id):
    driver = drive()
    stream = driver.add(5, **params)
    advance(driver)
    advance(driver)
    assert not driver.ends
    advance(driver, with_token(EOS))
    if reason is None:
        assert not driver.ends
        return
    end = driver.ends[stream]
    assert (end.finish_reason, end.stop_token_id) == (reason, stop_token_id)
    assert unpack_ids(end.token_ids).tolist() == [EOS]
    assert driver.engine.is_idle


def test_a_first_token_may_be_the_last(drive):
    driver = drive(pipeline_depth=2)
    by_length, by_stop = driver.add([1, 2], max_tokens=1), driver.add([3, 4], stop_token_ids=(77,))
    advance(driver, with_token(77, index=1))
    driver.run()
    assert driver.ends[by_length].finish_reason is FinishReason.LENGTH
    assert driver.ends[by_stop].finish_reason is FinishReason.STOP
    assert len(driver.tokens[by_length]) == len(driver.tokens[by_stop]) == 1


def test_tokens_sampled_past_the_end_are_not_delivered(drive):
    driver = drive(pipeline_depth=3)
    stream = driver.add(5, stop_token_ids=(77,))
    for _ in range(3):
        driver.plan()
        driver.execute()
    driver.apply()
    driver.apply(with_token(77))
    assert len(driver.tokens[stream]) == 2
    driver.run()
    assert len(driver.tokens[stream]) == 2


def test_the_times_of_all_phases_add_up(drive):
    driver = drive(max_num_seqs=1)
    driver.add(4, max_tokens=5)
    waiting = driver.add(4, max_tokens=5)
    driver.run()
    times = driver.ends[waiting].times
    assert times.queued_s > 0
    assert times.prefill_s > 0
    assert times.decode_s > 0
    assert times.queued_s + times.prefill_s + times.decode_s == pytest.approx(driver.now)


def test_a_steady_step_is_sent_as_repeated_columns_and_the_workers_bytes(drive):
    driver = drive(max_num_seqs=4)
    streams = [driver.add([i + 1] * 3, max_tokens=20) for i in range(4)]
    for _ in range(3):
        advance(driver)
    driver.plan()
    driver.execute()
    answer = driver.answers[0]
    driver.apply()
    before, after = driver.messages[-2][1], driver.messages[-1][1]
    assert after.outputs == ()
    assert unpack_int64(after.columns.stream_ids).tolist() == streams
    assert after.columns.token_ids == answer.token_ids
    assert after.columns.stream_ids is before.columns.stream_ids
    assert after.columns.first_positions is before.columns.first_positions
    assert after.columns.advance == before.columns.advance + 1


def test_each_client_receives_only_its_own_streams(drive):
    driver = drive()
    driver.engine.add_client(OTHER, 0.0)
    mine = [driver.add([1, 2, i], max_tokens=9, seed=i) for i in range(3)]
    other = [driver.add([3, 4, i], max_tokens=9, seed=i, client=OTHER) for i in range(2)]
    driver.run()
    for client, streams in ((CLIENT, mine), (OTHER, other)):
        delivered = set()
        for receiver, message in driver.messages:
            if receiver == client:
                delivered |= {output.stream_id for output in message.outputs}
                delivered |= set(unpack_int64(message.columns.stream_ids)) if message.columns else set()
        assert delivered == set(streams)
    assert all(len(driver.tokens[stream]) == 9 for stream in mine + other)


def test_logprobs_are_sent_with_their_tokens_and_other_tokens_stay_in_columns(drive):
    driver = drive()
    detailed = driver.add([1, 2, 3], max_tokens=6, logprobs=2)
    quiet = driver.add([4, 5, 6], max_tokens=6)
    driver.run()
    outputs = [o for _, m in driver.messages for o in m.outputs]
    assert sum(output.stream_id == detailed for output in outputs) == 6
    for output in outputs:
        if output.stream_id == detailed:
            [token] = unpack_ids(output.token_ids)
            assert unpack_ids(output.logprobs.token_ids).tolist() == [token] * 3
    assert sum(output.stream_id == quiet for output in outputs) == 2  # first and last


def test_prompt_logprobs_come_complete_with_the_first_output_of_each_sequence(drive):
    driver = drive(max_num_batched_tokens=5)
    stream = driver.add(13, max_tokens=3, n=2, seed=1, prompt_logprobs=1)
    driver.run()
    for index in range(2):
        logprobs = driver.firsts[stream + index].prompt_logprobs
        assert unpack_ids(logprobs.ranks).tolist() == list(range(1, 13))


def test_prompt_logprobs_are_complete_after_preemption_within_the_prompt(drive):
    driver = drive(max_num_batched_tokens=5)
    stream = driver.add(13, max_tokens=3, prompt_logprobs=0)
    advance(driver)
    driver.scheduler.preempt(driver.sequence(stream))
    driver.add([50, 51], max_tokens=2)
    driver.run()
    assert unpack_ids(driver.firsts[stream].prompt_logprobs.ranks).tolist() == list(range(1, 13))


def test_stats_come_at_most_every_100_ms(drive):
    driver = drive()
    driver.add(5, max_tokens=40)
    driver.run()  # 10 ms per step
    delivered = [message.stats for _, message in driver.messages if message.stats is not None]
    assert len(delivered) == 4
    assert delivered[-1].num_running == 1
    assert delivered[-1].num_blocks == 64


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.STOP])
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
@pytest.mark.parametrize("depth", [1, 3])
def test_an_abort_ends_a_stream_at_any_moment(drive, reason, steps, depth):
    driver = drive(pipeline_depth=depth, max_num_batched_tokens=8)
    stream, other = driver.add(12, max_tokens=20, seed=1), driver.add(12, max_tokens=20, seed=2)
    for _ in range(steps):
        driver.plan()
        driver.execute()
        if len(driver.answers) == depth:
            driver.apply()
    driver.abort(stream, 12345, reason=reason)
    driver.abort(stream, reason=reason)
    assert driver.ends[stream].finish_reason is reason
    assert driver.ends[stream].stop_token_id is None
    delivered = len(driver.tokens[stream])
    driver.run()
    assert len(driver.tokens[stream]) == delivered
    assert len(driver.tokens[other]) == 20


def test_one_client_cannot_abort_anothers_stream(drive):
    driver = drive()
    driver.engine.add_client(OTHER, 0.0)
    stream = driver.add(5, max_tokens=3)
    driver.abort(stream, client=OTHER)
    driver.run()
    assert driver.ends[stream].finish_reason is FinishReason.LENGTH


def test_a_silent_clients_requests_end_with_its_lease(drive):
    driver = drive(pipeline_depth=2)
    driver.engine.add_client(OTHER, 0.0)
    driver.add(5, max_tokens=30, client=OTHER, n=2, seed=1)
    mine = driver.add(5, max_tokens=10)
    driver.plan()
    driver.execute()
    driver.engine.renew_lease(CLIENT, CLIENT_LEASE_S)
    assert driver.engine.expired_clients(CLIENT_LEASE_S) == []
    assert driver.engine.expired_clients(CLIENT_LEASE_S + 0.1) == [OTHER]
    driver.engine.remove_client(OTHER, driver.now)
    driver.run()
    assert len(driver.tokens[mine]) == 10
    assert driver.engine.kv_cache.pool.num_free == driver.facts.num_blocks


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_replaced_workers_change_no_token_and_repeat_none(drive, depth):
    reference = drive(max_num_batched_tokens=8)
    streams = [reference.add([i] * 10, max_tokens=15, seed=i) for i in (1, 2, 3)]
    reference.run()
    driver = drive(max_num_batched_tokens=8, pipeline_depth=depth)
    for i in (1, 2, 3):
        driver.add([i] * 10, max_tokens=15, seed=i)
    for steps in (1, 2, 4, 7):
        for _ in range(steps):
            driver.step()
        stale = list(driver.answers)
        driver.plans.clear()
        driver.answers.clear()
        epoch = driver.engine.worker_epoch + 1
        driver.take(driver.engine.workers_replaced(epoch, driver.now, from_outside=True))
        driver.worker = type(driver.worker)(driver.facts.num_blocks, 4, driver.facts.vocab_size, epoch)
        assert all(driver.engine.apply(answer, driver.now) == [] for answer in stale)
        assert driver.engine.kv_cache.pool.num_cached == 0
    driver.run()
    assert [driver.tokens[stream] for stream in streams] == [reference.tokens[stream] for stream in streams]
    assert all(driver.ends[stream].times.num_preemptions == 0 for stream in streams)


@pytest.mark.parametrize("delivered", [0, 1, 7, 14])
def test_a_new_core_continues_after_the_delivered_tokens(drive, delivered):
    first = drive()
    stream = first.add(10, max_tokens=15, seed=4)
    whole = first.run().tokens[stream]
    driver = drive(epoch=1)
    driver.tokens[stream] = whole[:delivered]
    driver.add(10, max_tokens=15, seed=4, resume=(whole[:delivered],))
    driver.run()
    assert driver.tokens[stream] == whole
    assert driver.ends[stream].finish_reason is FinishReason.LENGTH
    assert {message.epoch for _, message in driver.messages} == {1}


@pytest.mark.parametrize(
    ("resume", "params", "reason"),
    [
        ([5, 6, 7], {"max_tokens": 3}, FinishReason.LENGTH),
        ([5, 6, 7], {"stop_token_ids": (7,)}, FinishReason.STOP),
        ([5, EOS], {"ignore_eos": False}, FinishReason.STOP),
    ],
)
def test_a_resumed_sequence_that_had_ended_ends_at_once(drive, resume, params, reason):
    driver = drive()
    driver.tokens[1000] = list(resume)
    stream = driver.add(4, resume=(resume,), **params)
    assert driver.ends[stream].finish_reason is reason
    assert driver.tokens[stream] == resume
    assert driver.engine.is_idle
