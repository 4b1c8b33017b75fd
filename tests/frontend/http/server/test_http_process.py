"""The frontend as a process: alive at once, ready with the engine, drained and stopped on command, small."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from paged_serve.protocol.messages import control
from paged_serve.protocol.messages.engine_core import AbortRequests, EngineCoreRequest
from paged_serve.protocol.messages.sampling_params import FinishReason
from paged_serve.protocol.process.file_stamps import stamp_of
from paged_serve.protocol.transport.run_dir import make_run_dir, remove_run_dir

from ...fake_core import FakeCore, output
from ...frontend_process import FrontendUnderTest


def say(text):
    """A core's script: every request gets `text`, then ends; the fake tokenizer has one token per byte."""
    alphabet = json.loads((say.folder / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = [alphabet[char] for char in text]

    def script(core, peer, message):
        if isinstance(message, EngineCoreRequest):
            core.send(output(core.epoch, message.request_id, 0, tokens[:2]), peer)
            core.send(output(core.epoch, message.request_id, 2, tokens[2:], FinishReason.LENGTH), peer)

    return script


def test_a_frontend_is_alive_at_once_ready_with_the_engine_and_ends_on_stop(start_frontend, start_core, folder):
    say.folder = folder
    frontend = start_frontend()
    assert frontend.get("/live")[0] == 200
    assert frontend.get("/ready")[0] == 503
    start_core(script=say("hello"))
    facts = frontend.wait_for(control.Ready).facts
    assert facts["chat template"] == "yes"
    assert frontend.get("/ready") == (200, b"")
    frontend.wait_for(control.Heartbeat)
    answer = httpx.post(
        f"http://127.0.0.1:{frontend.port}/v1/completions", json={"prompt": "x", "max_tokens": 5}, timeout=60
    ).json()
    assert answer["choices"][0]["text"] == "hello"
    status = Path(f"/proc/{frontend.process.pid}/status").read_text()
    assert int(status.split("VmRSS:")[1].split()[0]) < 150 * 1024
    frontend.send(control.Stop())
    assert frontend.process.wait(60) == 0


def test_a_request_before_the_server_is_imported_is_answered_by_it(start_frontend):
    frontend = start_frontend(welcome=False)  # without a configuration the server does not start yet
    assert frontend.get("/live") == (200, b"")
    with socket.create_connection(("127.0.0.1", frontend.port), timeout=60) as link:
        link.sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n")
        frontend.get("/live")  # afterwards early health has accepted the other connection
        frontend.send(control.Welcome(frontend.config))
        link.sendall(b"\r\n")
        assert link.recv(4096).startswith(b"HTTP/1.1 503 ")
    assert frontend.get("/live") == (200, b"")


def test_a_frontend_refuses_a_template_that_was_written_after_the_server_had_started(start_frontend, folder):
    frontend = start_frontend(welcome=False)
    template = Path(folder, "chat_template.jinja")
    files = (stamp_of(template),)
    os.utime(template, ns=(0, 0))
    frontend.send(control.Welcome(frontend.config, files=files))
    failed = frontend.wait_for(control.Failed)
    assert failed.refused
    assert f"{template} was changed after the server had started" in failed.reason


def test_the_frontend_never_loads_numpy_or_torch():
    code = (
        "import sys, paged_serve.frontend.http.server.http_process, paged_serve.frontend.http.routes.router;"
        "assert not {'torch', 'numpy', 'pydantic', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_silent_engine_makes_it_unready(start_frontend, start_core):
    frontend = start_frontend()
    core = start_core()
    frontend.wait_for(control.Ready)
    core.mute = True
    silent_since = time.monotonic()
    while frontend.get("/ready")[0] == 200:
        assert time.monotonic() - silent_since < 60
    assert frontend.get("/live")[0] == 200


def test_an_engine_without_workers_makes_it_unready_but_not_unhealthy(start_frontend, start_core):
    frontend, core = start_frontend(), start_core()
    frontend.wait_for(control.Ready)
    core.computes = False
    frontend.wait_for_status("/ready", 503)
    assert frontend.get("/health")[0] == 200
    core.computes = True
    frontend.wait_for_status("/ready", 200)


def test_draining_finishes_running_requests_and_refuses_the_rest(start_frontend, start_core):
    frontend, held = start_frontend(), []
    core = start_core(script=lambda core, peer, message: held.append(message))
    frontend.wait_for(control.Ready)

    async def talk():
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{frontend.port}", timeout=60) as client:
            running = asyncio.create_task(client.post("/v1/completions", json={"prompt": "x", "max_tokens": 5}))
            while not (requests := core.all(EngineCoreRequest)):
                await asyncio.sleep(0.01)
            frontend.send(control.Drain())
            while (await client.get("/ready")).status_code == 200:
                await asyncio.sleep(0.01)
            refused = await client.post("/v1/completions", json={"prompt": "x"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            core.do(output(core.epoch, requests[0].request_id, 0, [70], FinishReason.LENGTH))
            assert (await running).status_code == 200

    asyncio.run(talk())
    frontend.wait_for(control.Drained)


def test_draining_waits_until_answers_are_sent(start_frontend, start_core):
    frontend = start_frontend()
    start_core()
    frontend.wait_for(control.Ready)
    frontend.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)  # otherwise the kernel buffers megabytes
    body = json.dumps({"prompt": "ab " * 80_000, "return_token_strs": True}).encode()
    head = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", frontend.port)) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
        link.sendall(head + body)
        answer = link.recv(100)  # the answer has begun, and is larger than the kernel's buffers
        frontend.send(control.Drain())
        with pytest.raises(AssertionError, match="no Drained"):
            frontend.wait_for(control.Drained, 1.0)
        while more := link.recv(1 << 20):
            answer += more
    assert answer.endswith(b'" "]}')
    frontend.wait_for(control.Drained)


def test_a_closed_connection_aborts_its_request(start_frontend, start_core):
    frontend, core = start_frontend(), start_core()
    frontend.wait_for(control.Ready)
    body = b'{"prompt": ["x", "y"], "n": 2}'
    with socket.create_connection(("127.0.0.1", frontend.port)) as link:
        link.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        core.wait_for(EngineCoreRequest, 2)
    core.wait_for(AbortRequests)
    deadline = time.monotonic() + 60
    while len({i for message in core.all(AbortRequests) for i in message.stream_ids}) < 4:
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /live HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 40000 + b"\r\n\r\n", b"431"),
        (b"GET /live HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 40000, b"431"),
        (b"GET /" + b"a" * 40000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", b"431"),
        (b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 5000000\r\n\r\n", b"413"),
        (b"GET /live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", b"200"),
    ],
)
def test_malformed_http_gets_its_status(start_once, data, status):
    head, _, body = start_once.raw(data).partition(b"\r\n\r\n")
    assert head.split()[1] == status
    if status != b"200":
        assert json.loads(body)["error"]["code"] == int(status)


@pytest.fixture(scope="module")
def start_once(folder):
    run_dir = make_run_dir()
    core = FakeCore(run_dir)
    frontend = FrontendUnderTest(run_dir, folder)
    frontend.wait_for(control.Ready)
    yield frontend
    frontend.close()
    core.kill()
    remove_run_dir(run_dir)
