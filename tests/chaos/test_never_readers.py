"""500 clients that send requests and never read: their cost is bounded, and other clients are not affected."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paged_serve.frontend.client.async_client import AsyncClient
from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.protocol.messages.engine_core import Utility

from ..end_to_end.server_process import PROMPT, ROOT, ServerProcess
from .faults import check_nothing_is_left, process_of, run_dir

pytestmark = [
    pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model"),
    pytest.mark.nightly,
    pytest.mark.timeout(900),
]

CLIENTS = 500
MAX_TOKENS = 300
CORE_BYTES = 32 << 20
FRONTEND_BYTES = CLIENTS * (256 << 10)
WITHIN_S = 600.0

STOPPED_CLIENTS = """
import asyncio, sys
from paged_serve.frontend.client.async_client import AsyncClient
from paged_serve.protocol.messages.sampling_params import SamplingParams

async def main(run_dir, clients, requests, max_tokens):
    params = SamplingParams(max_tokens=max_tokens, logprobs=5, ignore_eos=True)
    readers = [await AsyncClient.connect(run_dir) for _ in range(clients)]
    asked = [client.submit([5, 6, 7], params) for client in readers for _ in range(requests)]
    await anext(asked[0])
    print("asked", flush=True)
    await asyncio.Event().wait()

asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
"""


@pytest.fixture
def server(tmp_path_factory) -> Iterator[ServerProcess]:
    options = ("--max-num-queued-requests", "1024", "--num-blocks", "4096", "--no-standby-workers")
    server = ServerProcess(tmp_path_factory.mktemp("t"), *options)
    try:
        server.wait_ready()
        yield server
    finally:
        server.close()


def memory(server: ServerProcess, role: str, field: str) -> int:
    """The current memory (VmRSS) of a process in bytes, or its peak (VmHWM)."""
    process = process_of(server, role)
    assert process is not None
    [kilobytes] = re.findall(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    return int(kilobytes) << 10


async def wait_until_all_is_computed(server: ServerProcess) -> None:
    deadline = time.monotonic() + WITHIN_S
    async with await AsyncClient.connect(str(run_dir(server))) as client:
        while True:
            stats = json.loads(await client.utility(Utility.STATS))
            if stats["num_running"] == stats["num_waiting"] == 0:
                return
            assert time.monotonic() < deadline, stats
            await asyncio.sleep(0.2)


@contextlib.contextmanager
def unread_streams(server: ServerProcess) -> Iterator[list[socket.socket]]:
    body = json.dumps({**PROMPT, "max_tokens": MAX_TOKENS, "logprobs": 5, "ignore_eos": True, "stream": True}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    with contextlib.ExitStack() as opened:
        connections = []
        for _ in range(CLIENTS):
            connection = opened.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", server.port))
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            connections.append(connection)
        yield connections


def read_all(connection: socket.socket) -> bytes:
    connection.settimeout(WITHIN_S)
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def text_of(answer: bytes) -> str:
    events = re.findall(rb"^data: (\{.*\})\r?$", answer, re.MULTILINE)
    return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])


def test_each_http_client_costs_only_its_stored_answer_and_may_still_read(server):
    undisturbed = server.complete(max_tokens=MAX_TOKENS, ignore_eos=True)
    core, frontend = (memory(server, role, "VmRSS") for role in ("engine-core", "frontend"))
    with unread_streams(server) as connections:
        asyncio.run(wait_until_all_is_computed(server))
        assert memory(server, "engine-core", "VmHWM") - core < CORE_BYTES
        assert memory(server, "frontend", "VmHWM") - frontend < FRONTEND_BYTES
        assert server.complete(max_tokens=MAX_TOKENS, ignore_eos=True) == undisturbed
        late = [read_all(connection) for connection in connections[::100]]
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in late)
    assert [text_of(answer) for answer in late] == [undisturbed] * len(late)
    asyncio.run(check_nothing_is_left(server))


def test_stopped_zeromq_clients_lose_their_lease(server):
    undisturbed = server.complete(max_tokens=96)
    core = memory(server, "engine-core", "VmRSS")
    counts = map(str, (CLIENTS // 10, 10, MAX_TOKENS))
    halted = subprocess.Popen(
        [sys.executable, "-c", STOPPED_CLIENTS, str(run_dir(server)), *counts],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert halted.stdout is not None
        assert halted.stdout.readline() == "asked\n"
        halted.send_signal(signal.SIGSTOP)
        assert server.complete(max_tokens=96) == undisturbed
        asyncio.run(wait_until_all_is_computed(server))
        asyncio.run(wait_until_few_clients(server))
        assert memory(server, "engine-core", "VmHWM") - core < CORE_BYTES
        assert server.complete(max_tokens=96) == undisturbed
        asyncio.run(check_nothing_is_left(server))
    finally:
        halted.kill()
        halted.communicate()


async def wait_until_few_clients(server: ServerProcess) -> None:
    """Wait until only the frontend and the test are connected."""
    deadline = time.monotonic() + WITHIN_S
    async with await AsyncClient.connect(str(run_dir(server))) as client:
        while len(clients := json.loads(await client.utility(Utility.DUMP_STATE))["clients"]) > 3:
            assert time.monotonic() < deadline, clients
            await asyncio.sleep(0.2)
