"""Events of the prefix cache of a real server, for a follower that outlives its processes."""

import contextlib
import importlib.util
import time

import pytest
import zmq

from ..serving import ROOT, serving


def load_example():
    spec = importlib.util.spec_from_file_location("kv_events", ROOT / "examples/kv_events.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WITHIN_S = 100.0
WORKER, CORE = "paged_serve.workers.process", "paged_serve.engine_core.process"
Follower = load_example().Follower


def complete(server, text):
    status, answer = server.post("/v1/completions", {"prompt": text, "max_tokens": 20, "temperature": 0})
    assert status == 200, answer
    return answer["choices"][0]["text"]


def agree(follower, endpoints):
    """The follower reads until its index is that of a new one, which starts from a snapshot."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        while follower.receive(timeout_s=0.2):
            pass
        with Follower(*endpoints) as fresh:
            fresh.replay()
        if (fresh.index.blocks, fresh.index.in_tiers) == (follower.index.blocks, follower.index.in_tiers):
            return fresh.index.blocks
    raise AssertionError(f"{len(fresh.index.blocks ^ follower.index.blocks)} blocks differ")


def agree_on_tier(follower, endpoints, expected):
    """The same, until the tier has the blocks that are expected there."""
    deadline = time.monotonic() + WITHIN_S
    while agree(follower, endpoints) is not None and time.monotonic() < deadline:
        if follower.index.in_tiers["STORAGE"] == expected:
            return
    raise AssertionError(f"{len(follower.index.in_tiers['STORAGE'])} blocks in the tier, {len(expected)} expected")


@contextlib.contextmanager
def reader_that_stops(endpoint):
    """Sends requests of other forms, and never reads an answer."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(endpoint)
        for frames in ([b""], [b"x" * 100_000], [b"", b"short"], [b"", bytes(8), b""], [b"", bytes(8)]):
            socket.send_multipart(frames)
        yield


def test_a_follower_agrees_with_the_server_after_evictions_and_after_each_process_was_killed(short_folder):
    endpoints = [f"ipc://{short_folder}/events", f"ipc://{short_folder}/replay"]
    options = ["--kv-events-endpoint", endpoints[0], "--kv-events-replay-endpoint", endpoints[1]]
    limits = ["--num-blocks", "40", "--max-model-len", "512"]
    with serving(*options, *limits) as server, reader_that_stops(endpoints[1]), Follower(*endpoints) as follower:
        follower.replay()
        texts = [f"Story {index}: " + "once upon a time " * 12 for index in range(6)]
        answers = [complete(server, text) for text in texts]
        before = agree(follower, endpoints)
        assert 10 < len(before) <= 40
        for module in (WORKER, CORE):
            server.children(module)[0].kill()
            assert [complete(server, text) for text in texts] == answers
            assert agree(follower, endpoints) == before, "the same requests left other blocks"
        status, _ = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
        assert status == 200


def test_a_follower_knows_the_blocks_on_disk_after_a_kill_and_after_a_restart(short_folder):
    endpoints = [f"ipc://{short_folder}/events", f"ipc://{short_folder}/replay"]
    options = ["--kv-events-endpoint", endpoints[0], "--kv-events-replay-endpoint", endpoints[1]]
    options += ["--kv-tier-dir", f"{short_folder}/tier"]
    with serving(*options) as server, Follower(*endpoints) as follower:
        follower.replay()
        complete(server, "once upon a time " * 12)
        found = agree(follower, endpoints)
        assert len(found) > 2
        agree_on_tier(follower, endpoints, found)
        for module in (WORKER, CORE):
            server.children(module)[0].kill()
            status, _ = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})  # waits for the new process
            assert status == 200
            agree_on_tier(follower, endpoints, found)
    with serving(*options) as server, Follower(*endpoints) as follower:
        follower.replay()
        assert agree(follower, endpoints) == set()
        agree_on_tier(follower, endpoints, found)


def test_an_endpoint_that_cannot_be_bound_is_refused():
    refusal = "kv_events_endpoint='tcp://256.1.1.1:1' cannot be bound"
    with pytest.raises(AssertionError, match=refusal), serving("--kv-events-endpoint", "tcp://256.1.1.1:1"):
        pass
