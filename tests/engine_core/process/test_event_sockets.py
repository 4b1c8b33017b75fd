"""Subscribers to the events of a real core's prefix cache, over real sockets."""

import contextlib

import pytest
import zmq
from msgspec import structs

from paged_serve.engine_core.kv.kv_events import KVEvents
from paged_serve.engine_core.process import event_sockets
from paged_serve.engine_core.process.event_sockets import MAX_RECEIVED_BYTES, QUIET_S, EventSockets
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


def connected(context, sockets, kind, which):
    socket = context.socket(kind)
    socket.linger = 0
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


def test_a_replay_without_room_for_all_its_batches_has_no_end(context, tmp_path, monkeypatch):
    """A reader that takes the end for that of a whole replay would keep blocks that are gone."""
    monkeypatch.setattr(event_sockets, "QUEUE_BATCHES", 1)
    config = KVEventsConfig(f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay", buffer_batches=8)
    with (
        contextlib.closing(EventSockets(context, config)) as sockets,
        connected(context, sockets, zmq.DEALER, 1) as follower,
    ):
        sockets.begin(KVEvents(16))
        for now in range(8):
            sockets.publish(now * QUIET_S)
        kept = {number for number, _ in sockets._log._kept}
        for _ in range(1000):  # more than the buffers of both sides hold
            follower.send_multipart([b"", sequence_bytes(min(kept))])
            assert sockets.sockets[1].poll(60_000)
            sockets.publish(0.0)
        seen, num_whole = set(), 0
        while sockets.publish(0.0) or follower.poll(500):
            if (number := batch_number(follower)) != int.from_bytes(END_OF_REPLAY, "big"):
                seen.add(number)
                continue
            assert seen == kept
            seen, num_whole = set(), num_whole + 1
            if num_whole < 50:  # some are asked for while the queue is being read
                follower.send_multipart([b"", sequence_bytes(min(kept))])
    assert num_whole


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
