"""A real frontend process stays within its budget whatever clients send, request or leave unread."""

import json
import socket
import time

import httpx
import psutil
import pytest

from paged_serve.protocol.messages import control
from paged_serve.protocol.messages.engine_core import EngineCoreRequest, Logprobs
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import FinishReason

from ...fake_core import output

BUDGET = 32 << 20
CONNECTION_BYTES = 24 << 10  # with its buffers in the allocator
LARGEST_BODY = BUDGET // 4 // 10


class Flooded:
    """A frontend under a flood, whose memory is sampled meanwhile."""

    def __init__(self, start_frontend, start_core, script=None, **server):
        self.frontend = start_frontend(max_buffered_bytes=BUDGET, access_log=False, **server)
        self.core = start_core(script=script or finish_at_once)
        self.frontend.wait_for(control.Ready)
        self._process = psutil.Process(self.frontend.process.pid)
        for _ in range(3):
            assert self.ask().status_code == 200  # imports and caches of the first requests
        self._idle = self._peak = self._rss()
        self.links: list[socket.socket] = []

    def _rss(self) -> int:
        return self._process.memory_info().rss

    def look(self) -> None:
        self._peak = max(self._peak, self._rss())

    def connect(self) -> socket.socket:
        self.links.append(socket.create_connection(("127.0.0.1", self.frontend.port), timeout=30))
        return self.links[-1]

    def ask(self) -> httpx.Response:
        return httpx.post(
            f"http://127.0.0.1:{self.frontend.port}/v1/completions", json={"prompt": "x", "max_tokens": 2}, timeout=30
        )

    def check(self) -> None:
        """The memory is within 1.1 times the budget plus that of connections, and other requests are answered."""
        self.look()
        grown = self._peak - self._idle
        print(f"grown by {grown / 2**20:.1f} MB with {len(self.links)} connections")
        assert grown <= 1.1 * BUDGET + len(self.links) * CONNECTION_BYTES, f"{grown / 2**20:.1f} MB"
        assert self.ask().status_code == 200
        for link in self.links:
            link.close()


def finish_at_once(core, peer, message):
    if isinstance(message, EngineCoreRequest):
        for index in range(message.sampling_params.n):
            core.send(output(core.epoch, message.request_id + index, 0, [70], FinishReason.LENGTH), peer)


def head_of(length: int, path: str = "/v1/completions", more: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{more}content-length: {length}\r\n\r\n".encode()


def send_all(links, data):
    """Send to each link as much as it accepts, and skip refused links."""
    for link in links:
        try:
            link.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            continue


def test_endless_bodies_stay_within_the_budget(start_frontend, start_core):
    flood = Flooded(start_frontend, start_core)
    data = b" " * (LARGEST_BODY - 1000)
    for _ in range(120):
        link = flood.connect()
        send_all([link], head_of(len(data) + 1) + data)
        if len(flood.links) % 20 == 0:
            flood.look()
            assert flood.ask().status_code == 200
    flood.check()


@pytest.mark.nightly
def test_announced_bodies_that_never_arrive_stay_within_the_budget(start_frontend, start_core):
    flood = Flooded(start_frontend, start_core)
    for _ in range(1200):
        flood.connect()
    send_all(flood.links, head_of(100))
    flood.check()


@pytest.mark.nightly
def test_bodies_for_routes_without_a_body_stay_within_the_budget(start_frontend, start_core):
    flood = Flooded(start_frontend, start_core)
    data = b" " * 200_000
    for _ in range(150):
        send_all([flood.connect()], head_of(len(data) + 1, "/v1/models") + data)
    flood.check()


def test_bodies_that_expand_when_decoded_stay_within_the_budget(start_frontend, start_core):
    """Requests of half a million tokens each, which the engine leaves waiting."""

    def script(core, peer, message):
        if isinstance(message, EngineCoreRequest) and len(message.prompt_token_ids) == 4:
            finish_at_once(core, peer, message)

    flood = Flooded(start_frontend, start_core, script)
    data = json.dumps({"prompt": [[70] * 4000] * 60, "max_tokens": 1}, separators=(",", ":")).encode()
    assert LARGEST_BODY // 2 < len(data) < LARGEST_BODY
    for _ in range(40):
        send_all([flood.connect()], head_of(len(data)) + data)
        flood.look()
    flood.check()


def test_answers_to_clients_that_do_not_read_stay_within_the_budget(start_frontend, start_core):
    """Forty unread streams of a thousand tokens with twenty logprobs each."""
    rows = 40
    one = Logprobs(pack_ids([500] * 21 * rows), b"\0\0\0\xbf" * 21 * rows, pack_ids([1] * rows))

    def script(core, peer, message):
        if isinstance(message, EngineCoreRequest) and message.sampling_params.logprobs is None:
            finish_at_once(core, peer, message)
        elif isinstance(message, EngineCoreRequest):
            for index in range(message.sampling_params.n):
                for start in range(0, 1000, rows):
                    tokens = [70] * rows
                    core.send(output(core.epoch, message.request_id + index, start, tokens, logprobs=one), peer)

    flood = Flooded(start_frontend, start_core, script)
    body = json.dumps({"prompt": "x", "max_tokens": 2000, "n": 8, "temperature": 1, "logprobs": 20, "stream": True})
    flood.frontend.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    for _ in range(40):
        link = flood.connect()
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        send_all([link], head_of(len(body)) + body.encode())
        flood.look()
    flood.core.wait_for(EngineCoreRequest, 43)
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        flood.look()
        time.sleep(0.05)
    flood.check()
