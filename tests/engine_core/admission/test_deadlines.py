"""Requests with a time limit expire before any of their tokens is computed, or continue."""

import math

from paged_serve.engine_core.engine.debug import check_invariants
from paged_serve.protocol.messages.engine_core import RejectReason
from paged_serve.protocol.messages.sampling_params import FinishReason


def expire(driver, now):
    driver.now = now
    driver.take(driver.engine.expire(now))
    check_invariants(driver.engine)


def test_a_request_that_waits_too_long_is_dropped_and_rejected_as_expired(drive):
    driver = drive(max_num_seqs=1)
    running, patient = driver.add(4, max_tokens=3), driver.add(4, max_tokens=3)
    driver.step()
    hasty = driver.add(4, max_tokens=3, ttl=2.0)
    assert driver.engine.next_deadline_s == driver.now + 2.0
    expire(driver, 1.9)
    assert driver.rejections == []
    expire(driver, 2.5)
    [expired] = driver.rejections
    assert (expired.request_id, expired.reason, expired.param) == (hasty, RejectReason.EXPIRED, "timeout")
    assert expired.message.startswith(
        "timeout=2: the request waited 2.49 s and was not started; 1 sequences are waiting"
    )
    assert driver.engine.next_deadline_s == math.inf
    driver.run()
    assert set(driver.ends) == {running, patient}
    assert not driver.tokens[hasty]


def test_a_request_in_computation_at_its_deadline_continues(drive):
    driver = drive(max_num_batched_tokens=4)
    stream = driver.add(10, max_tokens=3, ttl=1.0)
    driver.step()  # the first of three chunks
    assert driver.engine.next_deadline_s == math.inf
    expire(driver, 5.0)
    driver.run()
    assert (driver.rejections, len(driver.tokens[stream])) == ([], 3)


def test_a_preempted_request_continues_past_its_deadline(drive):
    driver = drive(num_blocks=8, block_size=4, max_num_seqs=2)
    streams = [driver.add([i + 1] * 8, max_tokens=20, ttl=1.0) for i in range(2)]
    while not driver.scheduler.num_preemptions:
        driver.step()
    expire(driver, 5.0)
    driver.run()
    assert [len(driver.tokens[stream]) for stream in streams] == [20, 20]


def test_a_request_of_several_sequences_expires_as_a_whole(drive):
    driver = drive(max_num_seqs=1)
    driver.add(4, max_tokens=3)
    driver.step()
    several = driver.add(4, max_tokens=3, n=3, temperature=1.0, ttl=1.0)
    driver.abort(several + 1)
    expire(driver, 1.5)
    assert [expired.request_id for expired in driver.rejections] == [several]
    driver.run()
    assert driver.scheduler.num_live == 0
    assert driver.ends[several + 1].finish_reason is FinishReason.ABORT


def test_an_aborted_or_abandoned_request_never_expires(drive):
    driver = drive(max_num_seqs=1)
    driver.engine.add_client(b"other", 0.0)
    driver.add(4, max_tokens=3)
    driver.step()
    driver.abort(driver.add(4, ttl=1.0))
    driver.add(4, ttl=1.0, client=b"other")
    driver.engine.remove_client(b"other", driver.now)
    assert driver.engine.next_deadline_s == math.inf
    expire(driver, 9.0)
    assert driver.rejections == []


def test_a_resumed_request_with_tokens_has_met_its_deadline(drive):
    driver = drive(max_num_seqs=1)
    driver.add(4, max_tokens=30)
    driver.step()
    driver.tokens[5] = [7, 8]
    driver.add(4, request_id=5, max_tokens=4, resume=([7, 8],), ttl=1.0)
    assert driver.engine.next_deadline_s == math.inf
    driver.run()
    assert len(driver.tokens[5]) == 4


def test_a_client_that_is_behind_receives_the_expiry_and_nothing_else(drive):
    driver = drive(max_num_seqs=1)
    busy = driver.add(4, max_tokens=6)
    driver.step()
    hasty = driver.add(4, ttl=1.0)
    outbox = driver.engine.clients[b"client:0"]
    outbox.credit = 0
    driver.step(2)
    assert outbox.is_behind
    expire(driver, 2.0)
    assert outbox.num_ended_pending == 0
    assert [expired.request_id for expired in driver.rejections] == [hasty]
    driver.take(driver.engine.outputs_received(b"client:0", 4))
    driver.run()
    assert set(driver.ends) == {busy}


def test_a_time_limit_that_cannot_be_met_is_refused_at_once_with_retry_after(drive):
    driver = drive(max_num_seqs=1, max_model_len=200, num_blocks=200)
    driver.add(4, max_tokens=100)
    driver.step(20)  # steps of 1 ms
    for _ in range(3):
        driver.add(4, max_tokens=100)
    driver.add(4, ttl=0.2)
    [refused] = driver.rejections
    assert (refused.reason, refused.request_id // 1000) == (RejectReason.OVERLOADED, 5)
    assert refused.message.startswith("timeout=0.2: the first token is expected in about 0.3")
    assert 0.1 <= refused.retry_after_s <= 0.25
    driver.add(4, ttl=2.0)
    assert len(driver.rejections) == 1
