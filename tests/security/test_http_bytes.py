"""Mutated HTTP on raw sockets: the server says no, or yes, but never 500, and the next good request is served."""

import json
import os
import random
import re
import socket
import time
from collections.abc import Iterator

import pytest

from ..end_to_end.serving import Server, serving

CI_COUNT = 400
NIGHTLY_COUNT = int(os.environ.get("PAGED_SERVE_FUZZ_COUNT", 1_000_000))
BODY = {"prompt": "Once", "max_tokens": 1, "temperature": 0, "logprobs": 1, "stop": ["x"], "stream": False}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
WORDS = [
    *(b"\r\n", b"\n", b"\0", b" ", b":", b"\t", b"\xff", b"%2e", b"//", b"?", b"{", b"[", b'"', b"\\ud800", b"1e999"),
    *(b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n", b"0\r\n\r\n", b"-1", b"99999999999999999999"),
    *(
        b"HTTP/1.0",
        b"HTTP/9.9",
        b"OPTIONS",
        b"expect: 100-continue\r\n",
        b"upgrade: h2c\r\n",
        b"[" * 200,
        b"null",
        b"NaN",
    ),
]


def request(method: str, path: str, body: dict | None = None) -> bytes:
    text = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(text) + text


SAMPLES = [
    request("POST", "/v1/completions", BODY),
    request("POST", "/v1/completions", {**BODY, "stream": True}),
    request("POST", "/v1/chat/completions", CHAT),
    request("POST", "/tokenize", {"prompt": "some text"}),
    *(request("GET", path) for path in ("/v1/models", "/live", "/ready", "/openapi.json", "/v1/streams/cmpl-1")),
]


def mutate(data: bytes, rng: random.Random) -> bytes:
    edited = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at = rng.randrange(len(edited) + 1)
        match rng.randrange(6):
            case 0 if at < len(edited):
                edited[at] ^= 1 << rng.randrange(8)
            case 1:
                edited[at:at] = rng.choice(WORDS)
            case 2:
                del edited[at : at + rng.randint(1, 12)]
            case 3:
                edited[at : at + rng.randint(0, 8)] = rng.randbytes(rng.randint(1, 8))
            case 4:
                other = rng.choice(SAMPLES)
                edited[at:at] = other[rng.randrange(len(other)) :]
            case _:
                edited[at:at] = edited[: rng.randint(0, len(edited))]
    return bytes(edited)


def answer(server: Server, data: bytes) -> bytes:
    """What comes back until the server closes; we end our half, so that nobody waits for the rest of a request."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as link:
        try:
            link.sendall(data)
            link.shutdown(socket.SHUT_WR)
            while more := link.recv(1 << 16):
                received += more
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has closed while we were still sending, as it may
    return received


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--max-model-len", "128", "--num-blocks", "256", "--threads", "1") as running:
        yield running


@pytest.mark.parametrize(
    "count", [CI_COUNT, pytest.param(NIGHTLY_COUNT, marks=[pytest.mark.nightly, pytest.mark.timeout(0)])]
)
def test_no_bytes_make_a_server_error(server, count):
    rng, started, seen = random.Random(count), time.monotonic(), dict[int, int]()
    for number in range(count):
        data = mutate(rng.choice(SAMPLES), rng)
        for status in map(int, re.findall(rb"HTTP/1\.1 (\d{3}) ", answer(server, data))):
            assert status < 500, f"number {number}: {data!r} got {status}"
            seen[status] = seen.get(status, 0) + 1
        if number % 1000 == 0:
            assert server.post("/v1/completions", BODY)[0] == 200
    assert server.post("/v1/completions", BODY)[0] == 200
    assert "Traceback" not in server.output()
    print(f"{count} requests in {time.monotonic() - started:.1f} s: {dict(sorted(seen.items()))}")
