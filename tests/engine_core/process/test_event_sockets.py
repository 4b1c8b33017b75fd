"""Subscribers to the events of a real core's prefix cache, over real sockets."""

import contextlib

import zmq
from msgspec import structs

from paged_serve.protocol.kv_events.index import KVEventIndex
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
