"""The real process and its workers: groups that die, hang, answer wrongly, come early or late."""

import re

from msgspec import structs

from paged_serve.engine_core.process.step_time_limits import MIN_STEPS
from paged_serve.frontend.client.sync_client import Client
from paged_serve.protocol.messages import control
from paged_serve.protocol.messages.handshake import handshake_hello, identity
from paged_serve.protocol.messages.worker import ToWorker
from paged_serve.protocol.transport.authentication import read_secret
from paged_serve.protocol.transport.channel import DealerChannel, new_context
from paged_serve.protocol.transport.run_dir import WORKERS_SOCKET, endpoint

from .engine_harness import EngineHarness
from .running_core import PARAMS, PROMPT, config, expected, start, tokens_of


def test_streams_continue_with_the_right_token_after_the_workers_die(impatient_harness, ranks):
    first = start(impatient_harness, ranks, ignores_after=20)
    with Client.connect(impatient_harness.run_dir) as client:
        request = client.submit(PROMPT, PARAMS)
        tokens = list(next(request).token_ids)
        lost = impatient_harness.wait_for(control.WorkersLost)
        assert lost.epoch == 0
        assert re.search(r"no answer to a step of \d+ tokens for 1(\.\d+)? s", lost.reason), lost.reason
        assert not impatient_harness.wait_for(control.HasWorkers).is_ready
        first.kill()
        while client.computes:
            client.wait(1.0)
        impatient_harness.send(control.WorkersReplaced(1))
        start(impatient_harness, ranks, epoch=1)
        assert impatient_harness.wait_for(control.HasWorkers).is_ready
        assert tokens + tokens_of(request) == expected()
        assert client.computes


def test_a_hang_is_detected_by_the_usual_step_time(run_dir, ranks):
    harness = EngineHarness(run_dir, config(step_timeout_s=1e6))
    try:
        start(harness, ranks, ignores_after=2 * MIN_STEPS)
        with Client.connect(harness.run_dir) as client:
            request = client.submit(PROMPT, structs.replace(PARAMS, max_tokens=4 * MIN_STEPS))
            next(request)
            assert "99.9 % of such steps take at most" in harness.wait_for(control.WorkersLost).reason
    finally:
        harness.close()


def test_an_undecodable_result_replaces_the_group_without_waiting_for_the_time_limit(run_dir, ranks):
    harness = EngineHarness(run_dir, config(step_timeout_s=60.0))
    try:
        start(harness, ranks, corrupts_step=3)
        with Client.connect(harness.run_dir) as client:
            request = client.submit(PROMPT, PARAMS)
            assert "could not be decoded" in harness.wait_for(control.WorkersLost).reason
            ranks[0].kill()
            harness.send(control.WorkersReplaced(1))
            start(harness, ranks, epoch=1)
            assert tokens_of(request) == expected()
    finally:
        harness.close()


def test_workers_that_connect_before_the_supervisors_message_replace_the_group(impatient_harness, ranks):
    start(impatient_harness, ranks, ignores_after=3)
    with Client.connect(impatient_harness.run_dir) as client:
        request = client.submit(PROMPT, PARAMS)
        impatient_harness.wait_for(control.WorkersLost)
        start(impatient_harness, ranks, epoch=1)
        impatient_harness.send(control.WorkersReplaced(1))
        assert tokens_of(request) == expected()


def test_a_worker_of_a_former_group_is_refused(harness, ranks):
    start(harness, ranks, epoch=4)
    harness.wait_for(control.Ready)
    late = start(harness, ranks, epoch=3)
    late.join(60)
    assert "worker group 3; group 4 is in use" in late.refused.reason
    assert late.refused.stale


def test_an_unknown_peer_on_the_workers_socket_replaces_no_worker(harness, ranks):
    start(harness, ranks)
    harness.wait_for(control.Ready)
    context = new_context()
    name, secret = identity("client", 0, 9), read_secret(harness.run_dir)
    link = DealerChannel(context, endpoint(harness.run_dir, WORKERS_SOCKET), secret, name, ToWorker)
    assert link.wait_connected(60)
    link.send(handshake_hello("client", 0, 9))
    assert "only workers" in link.receive(60).reason
    link.close()
    context.term()
    with Client.connect(harness.run_dir) as client:
        assert tokens_of(client.submit(PROMPT, PARAMS)) == expected()


def test_two_ranks_form_one_group_with_the_smaller_block_count(run_dir, ranks):
    harness = EngineHarness(run_dir, config(tensor_parallel_size=2))
    try:
        start(harness, ranks, rank=1, num_blocks=40)
        start(harness, ranks, rank=0, num_blocks=50)
        assert harness.wait_for(control.Ready).facts["kv_blocks"] == "40"
        with Client.connect(run_dir) as client:
            assert tokens_of(client.submit(PROMPT, PARAMS)) == expected()
            while ranks[0].num_steps != ranks[1].num_steps:  # one may be behind; the test's timeout bounds it
                client.wait(0.1)
    finally:
        harness.close()
