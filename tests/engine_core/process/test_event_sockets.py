"""Subscribers to the events of a real core's prefix cache, over real sockets."""

import contextlib
import math

import pytest
import zmq
from msgspec import structs

from paged_serve.engine_core.kv.kv_events import KVEvents
from paged_serve.engine_core.process import event_sockets
from paged_serve.engine_core.process.event_sockets import (
    MAX_RECEIVED_BYTES,
    MAX_REPLAYS,
    QUEUE_REPLAYED,
    QUIET_S,
    STALLED_S,
    EventSockets,
)
from paged_serve.protocol.kv_events.index import KVEventIndex
from paged_serve.protocol.kv_events.messages import END_OF_REPLAY, SEQUENCE_BYTES, sequence_bytes
from paged_serve.protocol.messages import control
from paged_serve.protocol.messages.config import KVEventsConfig

from .engine_harness import EngineHarness
from .running_core import config, start


def test_a_follower_that_connects_after_the_first_batch_learns_from_an_idle_core_that_it_has_missed_one(run_dir, ranks):
    events = f"ipc://{run_dir}/events"
    settings = structs.replace(config(), kv_events=KVEventsConfig(events))
    with (
        contextlib.closing(EngineHarness(run_dir, settings)) as harness,
        zmq.Context() as context,
        context.socket(zmq.SUB) as first,
        context.socket(zmq.SUB) as second,
    ):
        start(harness, ranks)
        harness.wait_for(control.Ready)
        harness.wait_for(control.Heartbeat)  # sent after the batch that tells that nothing of an earlier core is left
        for follower in (first, second):
            follower.subscribe(b"")
            follower.connect(events)
            assert follower.poll(60_000), "a follower of an idle core waits for the next request"
            _, number, batch = follower.recv_multipart()
            assert not KVEventIndex().receive(int.from_bytes(number, "big"), batch), "nothing tells that one is missing"


SNAPSHOT = bytes(SEQUENCE_BYTES)


@pytest.fixture
def context():
    with zmq.Context() as context:
        yield context


@pytest.fixture
def sockets(context, tmp_path):
    config = KVEventsConfig(f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay", buffer_batches=8)
    sockets = EventSockets(context, config)
    sockets.begin(KVEvents(16))
    yield sockets
    sockets.close()


def connected(context, sockets, kind, which, rcvhwm=1000):
    socket = context.socket(kind)
    socket.linger, socket.rcvhwm = 0, rcvhwm
    socket.connect(sockets.sockets[which].getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0"))
    return socket


def batch_number(follower):
    assert follower.poll(60_000)
    return int.from_bytes(follower.recv_multipart()[1], "big")


def test_a_flood_of_subscriptions_takes_a_bounded_part_of_an_iteration(context, sockets, monkeypatch):
    monkeypatch.setattr(event_sockets, "SECONDS_PER_ITERATION", 0.0)
    with connected(context, sockets, zmq.XSUB, 0) as follower:
        for number in range(100):
            follower.send(b"\x01%d" % number)
        for _ in range(100):
            assert sockets.sockets[0].poll(60_000)
            sockets.publish(0.0)
        assert not sockets.sockets[0].poll(0)


def test_each_iteration_answers_one_replay(context, sockets):
    sockets.publish(0.0)
    with connected(context, sockets, zmq.DEALER, 1) as follower:
        for _ in range(3):
            follower.send_multipart([b"", SNAPSHOT])
        for _ in range(3):
            assert sockets.sockets[1].poll(60_000)
            sockets.publish(0.0)
        assert not sockets.sockets[1].poll(100)
        numbers = [batch_number(follower) for _ in range(6)]
    assert numbers[1::2] == [int.from_bytes(END_OF_REPLAY, "big")] * 3


def filled(context, tmp_path, num_batches, batch=bytes(1 << 18)):
    """Sockets whose log has `num_batches` batches of 256 KB."""
    config = KVEventsConfig(f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay")
    sockets = EventSockets(context, config)
    sockets.begin(KVEvents(16))
    sockets._log._encode = lambda _: batch
    for now in range(num_batches):
        sockets.publish(now * QUIET_S)
    return sockets


def ask(sockets, follower, now):
    """Ask for all batches of the log."""
    follower.send_multipart([b"", sequence_bytes(sockets._log._kept[0][0])])
    assert sockets.sockets[1].poll(60_000)
    sockets.publish(now)


def numbers_until_silence(follower):
    numbers = []
    while follower.poll(500):
        numbers.append(batch_number(follower))
    return numbers


END = int.from_bytes(END_OF_REPLAY, "big")


def test_a_reader_that_never_reads_holds_few_batches_and_delays_no_other(context, tmp_path):
    """However many replays it asks for, and for as long as it is connected."""
    with (
        contextlib.closing(filled(context, tmp_path, 100)) as sockets,
        connected(context, sockets, zmq.DEALER, 1, rcvhwm=1) as idle,
        connected(context, sockets, zmq.DEALER, 1) as reader,
    ):
        for _ in range(100):
            ask(sockets, idle, 0.0)
        assert sockets.wake_at < QUIET_S
        ask(sockets, reader, 0.0)
        received = []
        while END not in received:
            sockets.publish(0.0)
            if reader.poll(1):
                received.append(batch_number(reader))
        assert received[:-1] == [number for number, _ in sockets._log._kept]
        sockets.publish(STALLED_S + 1.0)
        assert (sockets._replays, sockets.wake_at) == ({}, math.inf)
        held = numbers_until_silence(idle)
    assert len(held) < 2 * QUEUE_REPLAYED, "more batches of 256 KB than its queue and the kernel's hold"
    assert END not in held, "a reader would keep blocks that are gone"


def test_a_replay_ends_for_a_reader_that_pauses_and_is_cut_for_one_that_is_slower_than_the_log(
    context, tmp_path, monkeypatch
):
    monkeypatch.setattr(event_sockets, "STALLED_S", math.inf)
    with (
        contextlib.closing(filled(context, tmp_path, 60)) as sockets,
        connected(context, sockets, zmq.DEALER, 1, rcvhwm=1) as pausing,
        connected(context, sockets, zmq.DEALER, 1, rcvhwm=1) as slow,
    ):
        kept = [number for number, _ in sockets._log._kept]
        ask(sockets, pausing, 0.0)
        received = []
        while END not in received:
            if pausing.poll(10):
                received.append(batch_number(pausing))
            sockets.publish(0.0)
        assert received == [*kept, END]
        ask(sockets, slow, 0.0)
        for now in range(500):  # more than the log keeps
            sockets.publish(now * QUIET_S)
        held = numbers_until_silence(slow)
        while sockets.publish(0.0) or slow.poll(500):
            held.append(batch_number(slow))
        assert held == kept[: len(held)]
        assert not sockets._replays


def test_one_replay_too_many_cuts_the_one_that_has_waited_longest(context, tmp_path):
    with contextlib.closing(filled(context, tmp_path, 60)) as sockets, contextlib.ExitStack() as stack:
        readers = [connected(context, sockets, zmq.DEALER, 1, rcvhwm=1) for _ in range(MAX_REPLAYS + 1)]
        for now, reader in enumerate(map(stack.enter_context, readers)):
            ask(sockets, reader, float(now))
            if not now:
                [first] = sockets._replays
        assert len(sockets._replays) == MAX_REPLAYS
        assert first not in sockets._replays


def test_a_follower_of_a_quiet_core_learns_that_it_has_lost_a_batch(context, sockets):
    with connected(context, sockets, zmq.SUB, 0) as follower:
        follower.subscribe(b"")
        assert sockets.sockets[0].poll(60_000)
        sockets.publish(0.0)
        number = batch_number(follower)
        follower.unsubscribe(b"")  # what is published until it subscribes again is lost, like what a full queue drops
        assert sockets.sockets[0].poll(60_000)
        sockets.publish(1.0)
        assert not follower.poll(100)
        sockets.publish(QUIET_S - 0.1)
        sockets.publish(QUIET_S)
        sockets.publish(2 * QUIET_S - 0.1)
        sockets.publish(2 * QUIET_S)
        assert sockets._log._kept[-1][0] == number + 2


def test_no_peer_can_make_the_core_hold_a_large_message(context, sockets):
    with (
        connected(context, sockets, zmq.DEALER, 1) as attacker,
        connected(context, sockets, zmq.DEALER, 1) as follower,
    ):
        attacker.send_multipart([b"", bytes(MAX_RECEIVED_BYTES + 1)])
        assert not sockets.sockets[1].poll(500)
        follower.send_multipart([b"", SNAPSHOT])
        assert sockets.sockets[1].poll(60_000)
