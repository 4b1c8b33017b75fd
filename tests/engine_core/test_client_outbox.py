"""A client that does not keep up costs nothing but memory it was granted, and misses nothing."""

import pytest

from paged_serve.engine_core import client_outbox
from paged_serve.protocol.engine_core import MAX_UNACKNOWLEDGED_FRAMES
from paged_serve.protocol.message import MAX_FRAME_BYTES
from paged_serve.protocol.sampling_params import FinishReason

from .conftest import CLIENT


class Slow:
    """A driver whose client reads when it is told to."""

    def __init__(self, driver, credit):
        self.driver, self.unread = driver, []
        self.outbox = driver.engine.clients[CLIENT]
        self.outbox.credit = credit
        driver.take = self.unread.extend

    def read(self, count=None):
        messages, self.unread[:] = self.unread[:count], self.unread[count:] if count else []
        for client, message in messages:
            self.driver.read(message)
            self.unread.extend(self.driver.engine.outputs_received(client, 1))
        return len(messages)


@pytest.fixture
def slow(drive):
    return lambda credit, **options: Slow(drive(**options), credit)


def test_no_more_than_the_credit_is_ever_unacknowledged(slow):
    world = slow(MAX_UNACKNOWLEDGED_FRAMES, max_model_len=512, num_blocks=128)
    world.driver.add(5, max_tokens=400)
    world.driver.run()
    assert len(world.unread) == MAX_UNACKNOWLEDGED_FRAMES


@pytest.mark.parametrize("logprobs", [None, 1])
@pytest.mark.parametrize("credit", [1, 2, 5])
def test_one_coalesced_output_a_stream_tells_what_was_missed(slow, credit, logprobs):
    world = slow(credit, vocab_size=100)
    streams = [world.driver.add([i + 1] * 3, max_tokens=20, seed=i, logprobs=logprobs) for i in range(3)]
    world.driver.step(12)
    assert len(world.unread) == credit
    world.read(1)
    coalesced = world.unread[-1][1]
    assert coalesced.columns is None
    assert sorted(output.stream_id for output in coalesced.outputs) == streams
    assert all(len(output.token_ids) // 4 == 12 - credit for output in coalesced.outputs)
    if logprobs is not None:
        assert all(len(output.logprobs.ranks) // 4 == 12 - credit for output in coalesced.outputs)
    while world.read() or world.driver.step():
        pass
    assert all(len(world.driver.tokens[stream]) == 20 for stream in streams)


def test_after_it_has_caught_up_columns_go_on(slow):
    world = slow(2)
    world.driver.add(5, max_tokens=30)
    world.driver.step(6)
    assert world.outbox.is_behind
    world.read()
    assert not world.outbox.is_behind
    world.read()
    world.driver.step()
    assert world.unread[-1][1].columns is not None


def test_an_end_that_could_not_be_told_is_kept(slow):
    world = slow(1)
    stream, aborted = world.driver.add([1, 2], max_tokens=4), world.driver.add([3, 4], max_tokens=40)
    world.driver.step(6)
    world.driver.abort(aborted)
    assert world.driver.engine.is_idle
    assert not world.driver.engine.is_drained
    assert world.outbox.num_ended_untold == 2
    while world.read():
        pass
    assert world.driver.ends[stream].finish_reason is FinishReason.LENGTH
    assert world.driver.ends[aborted].finish_reason is FinishReason.ABORT
    assert len(world.driver.tokens[stream]) == 4
    assert len(world.driver.tokens[aborted]) == 6
    assert not world.outbox.is_behind
    assert world.driver.engine.is_drained


def test_a_client_that_never_reads_is_refused_more(slow):
    world = slow(1, max_num_queued_requests=3)
    for _ in range(4):
        world.driver.add(3, max_tokens=2)
        world.driver.run()
    world.driver.add(3)
    assert "until this client reads" in world.unread[-1][1].message


def test_large_news_is_told_in_frames_of_bounded_size(slow, monkeypatch):
    monkeypatch.setattr(client_outbox, "MAX_OUTPUT_BYTES", 2000)
    world = slow(1, vocab_size=100)
    streams = [world.driver.add([i + 1] * 3, max_tokens=40, seed=i, logprobs=5) for i in range(4)]
    world.driver.run()
    sizes = []
    while world.unread:
        sizes += [sum(map(client_outbox._num_bytes, message.outputs)) for _, message in world.unread]
        world.read()
    assert len(sizes) > 5
    assert max(sizes) <= 2500
    assert all(len(world.driver.tokens[stream]) == 40 for stream in streams)
    assert 4 * client_outbox.MAX_OUTPUT_BYTES <= MAX_FRAME_BYTES


def test_acknowledging_more_than_was_sent_gives_no_extra_credit(drive):
    driver = drive()
    driver.engine.outputs_received(CLIENT, 10_000)
    assert driver.engine.clients[CLIENT].credit == MAX_UNACKNOWLEDGED_FRAMES
