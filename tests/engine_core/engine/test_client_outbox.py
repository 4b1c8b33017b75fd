"""A slow client uses only the memory of its budget, and misses nothing."""

import msgspec
import pytest

from paged_serve.engine_core.admission import validation
from paged_serve.engine_core.engine.clients import client_outbox
from paged_serve.engine_core.engine.clients.unacknowledged import UnacknowledgedBudget
from paged_serve.protocol.messages.engine_core import MAX_UNACKNOWLEDGED_FRAMES, EngineCoreOutput, Logprobs
from paged_serve.protocol.messages.message import MAX_FRAME_BYTES, pack_ids
from paged_serve.protocol.messages.sampling_params import FinishReason

from ..conftest import CLIENT
from ..operations import count_lines


class Slow:
    """A driver whose client reads only on demand."""

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
def test_one_coalesced_output_per_stream_carries_what_was_missed(slow, credit, logprobs):
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


def test_columns_resume_once_a_client_has_caught_up(slow):
    world = slow(2)
    world.driver.add(5, max_tokens=30)
    world.driver.step(6)
    assert world.outbox.is_behind
    world.read()
    assert not world.outbox.is_behind
    world.read()
    world.driver.step()
    assert world.unread[-1][1].columns is not None


def test_an_end_that_could_not_be_sent_is_kept(slow):
    world = slow(1)
    stream, aborted = world.driver.add([1, 2], max_tokens=4), world.driver.add([3, 4], max_tokens=40)
    world.driver.step(6)
    world.driver.abort(aborted)
    assert world.driver.engine.is_idle
    assert not world.driver.engine.is_drained
    assert world.outbox.num_ended_pending == 2
    while world.read():
        pass
    assert world.driver.ends[stream].finish_reason is FinishReason.LENGTH
    assert world.driver.ends[aborted].finish_reason is FinishReason.ABORT
    assert len(world.driver.tokens[stream]) == 4
    assert len(world.driver.tokens[aborted]) == 6
    assert not world.outbox.is_behind
    assert world.driver.engine.is_drained


def test_requests_of_a_client_that_never_reads_are_refused(slow):
    world = slow(1, max_num_queued_requests=3)
    for _ in range(4):
        world.driver.add(3, max_tokens=2)
        world.driver.run()
    world.driver.add(3)
    assert "until this client reads" in world.unread[-1][1].message


def test_large_outputs_are_sent_in_frames_of_bounded_size(slow, monkeypatch):
    monkeypatch.setattr(client_outbox, "MAX_OUTPUT_BYTES", 2000)
    world = slow(1, vocab_size=100)
    streams = [world.driver.add([i + 1] * 3, max_tokens=40, seed=i, logprobs=5) for i in range(4)]
    world.driver.run()
    sizes = []
    while world.unread:
        sizes += [sum(map(client_outbox.output_bytes, message.outputs)) for _, message in world.unread]
        world.read()
    assert len(sizes) > 5
    assert max(sizes) <= 2500
    assert all(len(world.driver.tokens[stream]) == 40 for stream in streams)
    assert 4 * client_outbox.MAX_OUTPUT_BYTES <= MAX_FRAME_BYTES


def test_catching_up_is_linear_in_the_streams(slow):
    """The client acknowledges one frame at a time."""

    def lines(num_streams):
        world = slow(1, max_num_seqs=num_streams, num_blocks=8 * num_streams, max_num_batched_tokens=8192)
        for number in range(num_streams):
            world.driver.add([number + 1], max_tokens=20)
        world.driver.step(5)
        assert world.outbox.is_behind
        return count_lines(lambda: world.driver.engine.outputs_received(CLIENT, 1))

    assert lines(256) < 5 * lines(64)


def test_output_held_for_a_client_that_never_acknowledges_is_bounded_and_complete(slow):
    budget = 60_000
    world = slow(2, max_unacknowledged_bytes=budget, num_blocks=512, max_model_len=512, vocab_size=100)
    driver = world.driver
    driver.engine.add_client(b"reader", driver.now)
    silent = [driver.add([i + 1] * 3, max_tokens=400, seed=i, logprobs=20) for i in range(4)]
    reading = driver.add(5, max_tokens=450, client=b"reader")
    most = 0
    for _ in range(500):
        driver.step()
        most = max(most, driver.engine.unacknowledged.num_bytes)
        for message in [entry for entry in world.unread if entry[0] == b"reader"]:
            world.unread.remove(message)
            driver.read(message[1])
            driver.engine.outputs_received(b"reader", 1)
    assert 0.6 * budget < most <= 1.1 * budget
    assert len(driver.tokens[reading]) == 450, "other clients continue"
    assert set(driver.engine.paused_clients.names) == {CLIENT}
    assert driver.scheduler.num_live == 4
    assert len(driver.scheduler.free_rows) == driver.scheduler.max_num_rows, "it keeps no row and no block"
    assert driver.engine.kv_cache.pool.num_free == driver.facts.num_blocks
    while world.read() or driver.step():
        pass
    alone = slow(MAX_UNACKNOWLEDGED_FRAMES, num_blocks=512, max_model_len=512, vocab_size=100)
    again = [alone.driver.add([i + 1] * 3, max_tokens=400, seed=i, logprobs=20) for i in range(4)]
    while alone.read() or alone.driver.step():
        pass
    assert [driver.tokens[stream] for stream in silent] == [alone.driver.tokens[stream] for stream in again]
    assert driver.engine.unacknowledged.num_bytes == 0


def test_output_of_ended_streams_is_held_packed_and_counted(slow):
    world = slow(1, max_num_queued_requests=100)
    for index in range(20):
        world.driver.add([index + 1], max_tokens=30)
        world.driver.run()
    held = world.outbox.unacknowledged_bytes
    assert held > 19 * 30 * 4
    world.driver.engine.remove_client(CLIENT, world.driver.now)
    assert world.driver.engine.unacknowledged.num_bytes == 0


@pytest.mark.parametrize("num_clients", [1, 2, 3, 64])
def test_no_division_of_the_budget_exceeds_it(num_clients):
    budget = UnacknowledgedBudget(1_000_000)
    threshold = budget.threshold(num_clients)
    one_holds_all, each_other = threshold, threshold // num_clients
    assert one_holds_all + (num_clients - 1) * each_other <= budget.max_bytes


def test_the_largest_possible_output_fits_a_frame(drive):
    """Prompt logprobs at their limit, after other outputs and before thousands of tokens with logprobs."""
    driver = drive(vocab_size=100)
    outbox = driver.engine.clients[CLIENT]
    outbox.credit = 0
    sequences = [driver.sequence(driver.add([index + 1], max_tokens=None)) for index in range(2)]
    rows = validation.MAX_PROMPT_LOGPROBS_BYTES // (8 * 22)
    prompt = Logprobs(bytes(4 * 21 * rows), bytes(4 * 21 * rows), bytes(4 * rows))
    own = Logprobs(bytes(4 * 21), bytes(4 * 21), bytes(4))
    for position in range(3000):
        outputs = []
        for sequence, first in zip(sequences, (None, prompt), strict=True):
            sequence.output.append(7)
            first = first if position == 0 else None
            output = EngineCoreOutput(sequence.stream_id, position, pack_ids([7]), logprobs=own, prompt_logprobs=first)
            outputs.append((sequence, output))
        outbox.deliver(position, None, outputs)
    messages = outbox.acknowledge(256, 3000)
    frames = [len(msgspec.msgpack.encode(message)) for message in messages]
    assert 3_000_000 < max(frames) < MAX_FRAME_BYTES * 13 // 16
    for message in messages:
        driver.read(message)
    assert [len(driver.tokens[sequence.stream_id]) for sequence in sequences] == [3000, 3000]


def test_acknowledging_more_than_was_sent_gives_no_extra_credit(drive):
    driver = drive()
    driver.engine.outputs_received(CLIENT, 10_000)
    assert driver.engine.clients[CLIENT].credit == MAX_UNACKNOWLEDGED_FRAMES
