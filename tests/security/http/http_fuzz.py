"""Damaged HTTP requests on many raw connections at once, so that the server takes the time, not the fuzzer."""

import json
import random
import re
import selectors
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from paged_serve.frontend.http.routes.unsupported_routes import reason_against

from ...end_to_end.serving import Server

WIDTH = 16  # connections
TIMEOUT_S = 120.0  # without any output
BODY = {"prompt": "Once", "max_tokens": 1, "temperature": 0, "logprobs": 1, "stop": ["x"], "stream": False}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
WORDS = [
    *(b"\r\n", b"\n", b"\0", b" ", b":", b"\t", b"\xff", b"%2e", b"//", b"?", b"{", b"[", b'"', b"\\ud800", b"1e999"),
    *(b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n", b"0\r\n\r\n", b"-1", b"99999999999999999999"),
    *(b"HTTP/1.0", b"HTTP/9.9", b"OPTIONS", b"expect: 100-continue\r\n", b"upgrade: h2c\r\n"),
    *(b"[" * 200, b"null", b"NaN"),
]
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def request(method: str, path: str, body: dict | None = None) -> bytes:
    text = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(text) + text


SAMPLES = [
    request("POST", "/v1/completions", BODY),
    request("POST", "/v1/completions", {**BODY, "stream": True}),
    request("POST", "/v1/chat/completions", CHAT),
    request("POST", "/v1/messages", CHAT),
    request("POST", "/v1/responses", {"input": "hi", "max_output_tokens": 2}),
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


@dataclass(slots=True)
class Exchange:
    """One connection: the data to send, the number of bytes sent, and the bytes received."""

    link: socket.socket
    data: bytes
    num_sent: int = 0
    received: bytearray = field(default_factory=bytearray)

    def send(self) -> bool:
        """True once everything is sent. The sending side is then shut, so that the server waits for nothing more."""
        self.num_sent += self.link.send(self.data[self.num_sent :])
        if self.num_sent < len(self.data):
            return False
        self.link.shutdown(socket.SHUT_WR)
        return True


def exchanges(port: int, blobs: Iterable[bytes], width: int = WIDTH) -> Iterator[tuple[bytes, bytes]]:
    """(sent, answer until the server closed) for each of `blobs`, as they end, up to `width` under way."""
    waiting, num_open = iter(blobs), 0
    with selectors.DefaultSelector() as selector:
        while True:
            while num_open < width and (data := next(waiting, None)) is not None:
                link = socket.socket()
                link.setblocking(False)
                link.connect_ex(("127.0.0.1", port))
                selector.register(link, selectors.EVENT_WRITE, Exchange(link, data))
                num_open += 1
            if not num_open:
                return
            ready = selector.select(TIMEOUT_S)
            assert ready, f"{num_open} connections without output for {TIMEOUT_S:g} s"
            for key, events in ready:
                if _advance(selector, key.data, events):
                    selector.unregister(key.data.link)
                    key.data.link.close()
                    num_open -= 1
                    yield key.data.data, bytes(key.data.received)


def _advance(selector: selectors.BaseSelector, exchange: Exchange, events: int) -> bool:
    """True when it is over; the server may close while we are still sending."""
    try:
        if events & selectors.EVENT_WRITE and exchange.send():
            selector.modify(exchange.link, selectors.EVENT_READ, exchange)
        if events & selectors.EVENT_READ:
            more = exchange.link.recv(1 << 16)
            exchange.received += more
            return not more
    except BlockingIOError:
        return False
    except (BrokenPipeError, ConnectionResetError):
        return True
    return False


def is_refusal_by_name(answer: bytes) -> bool:
    """Whether an answer with 501 names a route of other servers: one byte of /v1/chat/completions makes /v1/chat."""
    body = answer.rpartition(b"\r\n\r\n")[2]
    if not body:
        return True  # of HEAD
    error = json.loads(body)["error"]
    message = error if isinstance(error, str) else error["message"]
    path, _, reason = message.partition(" is not served here: ")
    return reason == f"{reason_against(path)}."


def fuzz(server: Server, seed: int, count: int, limit_s: float = float("inf")) -> Counter[int]:
    """How often each status was answered to `count` damaged requests. No begin after `limit_s`."""
    rng, seen, started = random.Random(seed), Counter[int](), time.monotonic()

    def damaged() -> Iterator[bytes]:
        for number in range(count):
            if number % 100 == 0 and time.monotonic() - started > limit_s:
                return
            yield mutate(rng.choice(SAMPLES), rng)

    for number, (data, answer) in enumerate(exchanges(server.port, damaged())):
        statuses = [int(status) for status in STATUS.findall(answer)]
        errors = [status for status in statuses if status >= 500 and not (status == 501 and is_refusal_by_name(answer))]
        assert not errors, f"seed {seed}: {data!r} got {errors}"
        seen.update(statuses or [0])
        if number % 1000 == 0:
            assert server.post("/v1/completions", BODY)[0] == 200
    assert server.post("/v1/completions", BODY)[0] == 200
    assert "Traceback" not in server.output()
    return seen
