"""The real process over real sockets: handshakes, requests, refusals, and a clean end."""

import contextlib
import os
import signal
import time
from pathlib import Path

import msgspec
import pytest
import zmq
from msgspec import structs

from paged_serve.engine_core.engine.engine import CLIENT_LEASE_S
from paged_serve.frontend.client.sync_client import Client
from paged_serve.protocol.errors import InvalidRequest, Overloaded
from paged_serve.protocol.kv_events.messages import SEQUENCE_BYTES
from paged_serve.protocol.messages import control
from paged_serve.protocol.messages.config import KVEventsConfig
from paged_serve.protocol.messages.engine_core import (
    CandidatesWithheld,
    CoreFailure,
    FromEngineCore,
    IsolationTurn,
    Utility,
    UtilityCall,
    UtilityResult,
    Welcome,
)
from paged_serve.protocol.messages.handshake import handshake_hello, identity
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.process.file_stamps import model_digest
from paged_serve.protocol.transport.authentication import read_secret
from paged_serve.protocol.transport.channel import DealerChannel, new_context
from paged_serve.protocol.transport.run_dir import ENGINE_SOCKET, endpoint

from .engine_harness import VOCAB_SIZE, EngineHarness
from .running_core import PARAMS, PROMPT, config, expected, start, tokens_of


def test_a_client_that_connected_early_gets_its_tokens_once_the_workers_are_ready(harness, ranks):
    start(harness, ranks)
    ready = harness.wait_for(control.Ready)
    assert ready.facts["kv_blocks"] == "64"
    assert ready.facts["dtype"] == "float32"
    assert ready.facts["weights_mb"] == "10.0"
    with Client.connect(harness.run_dir) as client:
        assert client.limits.num_blocks == 64
        assert tokens_of(client.submit(PROMPT, PARAMS)) == expected()
        assert ranks[0].error is None


def test_a_model_with_windows_has_room_for_longer_requests_than_its_blocks_hold_at_once(harness, ranks):
    start(harness, ranks, windows=(32,), num_blocks=8, max_model_len=1000)
    ready = harness.wait_for(control.Ready)
    assert [ready.facts[name] for name in ("kv_blocks", "kv_tokens", "max_model_len")] == ["8", "128", "1000"]
    prompt, params = list(range(1, 400)), SamplingParams(seed=5, max_tokens=100, ignore_eos=True)
    with Client.connect(harness.run_dir) as client:
        assert tokens_of(client.submit(prompt, params)) == expected(prompt, params)
        assert ranks[0].error is None


def test_the_context_is_what_the_blocks_of_all_groups_hold(harness, ranks):
    start(harness, ranks, windows=(0, 32), num_blocks=17, max_model_len=1000)
    assert harness.wait_for(control.Ready).facts["max_model_len"] == "160", "ten blocks, and seven for 31 + 64 tokens"


def test_an_idle_client_receives_stats_up_to_the_end_of_the_last_request(harness, ranks):
    start(harness, ranks)
    harness.wait_for(control.Ready)
    with Client.connect(harness.run_dir) as busy, Client.connect(harness.run_dir) as quiet:
        tokens_of(busy.submit(PROMPT, PARAMS))
        abandoned = busy.submit(PROMPT, PARAMS)
        next(abandoned)
        abandoned.abort()
        deadline = time.monotonic() + 60
        for client in (busy, quiet):
            while (stats := client.stats) is None or stats.num_running or stats.generation_tokens <= len(expected()):
                assert time.monotonic() < deadline
                client.wait(0.3)
        assert quiet.stats.generation_tokens == busy.stats.generation_tokens


def test_the_supervisor_receives_loading_progress_and_heartbeats(harness, ranks):
    start(harness, ranks)
    assert harness.wait_for(control.Progress) == control.Progress("loading weights", 5, 10)
    harness.wait_for(control.Ready)
    harness.wait_for(control.Heartbeat)
    harness.wait_for(control.Heartbeat)


def test_refusals_state_the_numbers(harness, ranks):
    start(harness, ranks)
    with Client.connect(harness.run_dir) as client:
        with pytest.raises(InvalidRequest, match="256"):
            tokens_of(client.submit([1] * 256, PARAMS))
        with pytest.raises(InvalidRequest, match=r"vocabulary|1000"):
            tokens_of(client.submit([VOCAB_SIZE], PARAMS))


def test_utilities_answer_in_json(harness, ranks):
    start(harness, ranks)
    with Client.connect(harness.run_dir) as client:
        tokens_of(client.submit(PROMPT, PARAMS))
        stats = msgspec.json.decode(client.utility(Utility.STATS))
        assert (stats["num_running"], stats["generation_tokens"], stats["prompt_tokens"]) == (0, 100, len(PROMPT))
        assert msgspec.json.decode(client.utility(Utility.CHECK_INVARIANTS)) == {}
        assert msgspec.json.decode(client.utility(Utility.DUMP_STATE))["blocks"]["free"] == 64
        client.utility(Utility.RESET_PREFIX_CACHE)
        assert msgspec.json.decode(client.utility(Utility.DUMP_STATE))["blocks"]["cached"] == 0


def test_draining_finishes_accepted_requests_and_refuses_new_ones(harness, ranks):
    start(harness, ranks)
    with Client.connect(harness.run_dir) as client:
        request = client.submit(PROMPT, PARAMS)
        tokens = list(next(request).token_ids)
        harness.send(control.Drain())
        harness.wait_for(control.Heartbeat)
        harness.wait_for(control.Heartbeat)
        with pytest.raises(Overloaded) as refusal:
            tokens_of(client.submit(PROMPT, PARAMS))
        assert refusal.value.draining
        assert tokens + tokens_of(request) == expected()
        harness.wait_for(control.Drained)


def test_a_core_that_replaces_another_during_a_drain_takes_the_requests_of_its_clients_and_no_others(run_dir, ranks):
    former = EngineHarness(run_dir, config())
    start(former, ranks)
    with Client.connect(run_dir) as client:
        ranks[0].kill()
        accepted = client.submit(PROMPT, PARAMS)  # and has no token yet
        client.utility(Utility.STATS)
        former.close()
        harness = EngineHarness(run_dir, config(), epoch=1)
        try:
            harness.send(control.Drain())
            began = time.monotonic()
            start(harness, ranks, epoch=1)
            harness.wait_for(control.Ready)
            for _ in range(2):
                assert isinstance(harness.wait_for(control.Heartbeat | control.Drained), control.Heartbeat)
            with Client.connect(run_dir) as other, pytest.raises(Overloaded, match="shutting down"):
                tokens_of(other.submit(PROMPT, PARAMS))
            assert tokens_of(accepted) == expected()
            harness.wait_for(control.Drained)
            assert time.monotonic() - began >= CLIENT_LEASE_S, "a client that was halted may still return"
        finally:
            harness.close()


def test_stop_ends_the_process_cleanly_and_notifies_the_clients(harness, ranks):
    start(harness, ranks)
    with Client.connect(harness.run_dir) as client:
        harness.send(control.Stop())
        while client.ready:  # the test's timeout bounds the wait
            client.wait(0.1)
        assert harness.process.wait(60) == 0


def test_sigterm_is_a_stop(harness, ranks):
    start(harness, ranks)
    harness.wait_for(control.Ready)
    harness.process.send_signal(signal.SIGTERM)
    assert harness.process.wait(60) == 0


def test_requests_of_a_lost_client_end(harness, ranks):
    start(harness, ranks)
    client = Client.connect(harness.run_dir)
    client.submit(PROMPT, SamplingParams(max_tokens=200, ignore_eos=True))
    client.wait(0.05)
    client.close()
    deadline = time.monotonic() + 60
    with Client.connect(harness.run_dir) as watcher:
        while msgspec.json.decode(watcher.utility(Utility.DUMP_STATE))["running"]:
            assert time.monotonic() < deadline, "the requests of a closed client still run"


@pytest.mark.alone  # beside other tests its rank, a thread of this process, may be late, and no other rank replaces it
def test_a_client_that_sends_more_than_it_reads_gets_an_answer_to_every_request(harness, ranks):
    start(harness, ranks)
    harness.wait_for(control.Ready)
    with Client.connect(harness.run_dir) as client, client._lock:  # no thread reads
        session, wire, asked = client._session, client._wire, []
        while len(asked) < 8000:
            asked.append(session.submit([1] * 255, SamplingParams(max_tokens=1)))
            wire.flush()
        deadline = time.monotonic() + 60
        while not all(request.ended for request in asked):
            assert time.monotonic() < deadline, f"{sum(not request.ended for request in asked)} were not answered"
            client._pump(0.1, 1024)


def test_a_repeated_hello_is_answered_with_whether_the_client_is_known(harness, ranks):
    start(harness, ranks)
    harness.wait_for(control.Ready)
    context = new_context()
    name, secret = identity("client", 0, 0), read_secret(harness.run_dir)
    link = DealerChannel(context, endpoint(harness.run_dir, ENGINE_SOCKET), secret, name, FromEngineCore)
    assert link.wait_connected(60)
    welcomes = []
    for _ in range(2):
        link.send(handshake_hello("client", 0, 0))
        while not isinstance(message := link.receive(60), Welcome):
            assert message is not None
        welcomes.append(message)
    link.close()
    context.term()
    assert [message.known for message in welcomes] == [False, True]
    assert {message.run for message in welcomes} == {os.path.basename(harness.run_dir)}
    assert {message.model for message in welcomes} == {model_digest(config(), ())}


def test_an_isolation_turn_waits_until_the_supervisor_has_recorded_it(run_dir, ranks):
    harness = EngineHarness(run_dir, config(), epoch=1, core_failures=(CoreFailure(0, 0),))
    context = new_context()
    name, secret = identity("client", 0, 0), read_secret(run_dir)
    link = DealerChannel(context, endpoint(run_dir, ENGINE_SOCKET), secret, name, FromEngineCore)
    try:
        start(harness, ranks, epoch=1)
        harness.wait_for(control.Ready)
        assert link.wait_connected(60)
        link.send(handshake_hello("client", 0, 0))
        link.send(CandidatesWithheld(1))
        assert harness.wait_for(control.IsolatesCandidates).turn == 1
        for call in (1, 2):  # the core answers in a later iteration than it reported in
            link.send(UtilityCall(call, Utility.STATS))
            while not isinstance(message := link.receive(60), UtilityResult):
                assert not isinstance(message, IsolationTurn | None)
        harness.send(control.IsolationRecorded(1))
        while not isinstance(message := link.receive(60), IsolationTurn):
            assert message is not None
        assert (message.epoch, message.turn) == (1, 1)
    finally:
        link.close()
        context.term()
        harness.close()


def test_an_idle_core_is_small_and_sleeps(harness, ranks):
    start(harness, ranks)
    harness.wait_for(control.Ready)
    status = Path(f"/proc/{harness.process.pid}/status").read_text()
    rss_mb = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) / 1024
    assert rss_mb <= 60
    assert cpu_s_of_three_heartbeats(harness) <= 0.1


def cpu_s_of_three_heartbeats(harness):
    def cpu_s():
        fields = Path(f"/proc/{harness.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = cpu_s()
    for _ in range(3):
        harness.wait_for(control.Heartbeat)
    return cpu_s() - before


def test_a_core_that_waits_for_workers_sleeps_although_a_follower_of_kv_events_waits_for_it(run_dir, ranks):
    endpoints = [f"ipc://{run_dir}/{name}" for name in ("events", "replay")]
    settings = structs.replace(config(), kv_events=KVEventsConfig(*endpoints))
    with (
        contextlib.closing(EngineHarness(run_dir, settings)) as harness,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as follower,
    ):
        follower.linger = 0
        follower.connect(endpoints[1])
        follower.send_multipart([b"", bytes(SEQUENCE_BYTES)])
        harness.wait_for(control.Heartbeat)
        assert cpu_s_of_three_heartbeats(harness) <= 0.1
        start(harness, ranks)
        assert follower.poll(60_000), "the replay was never answered"
