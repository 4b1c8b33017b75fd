"""Bytes in which two programs could see different requests, names that web pages could use: all are refused."""

import json
import socket
from collections.abc import Iterator

import pytest

from ...end_to_end.serving import Server, serving

BODY = b'{"prompt":"a"}'
CHUNKS = b"e\r\n" + BODY + b"\r\n0\r\n\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
LENGTH = b"content-length: 14\r\n"
HOST = b"host: localhost\r\n"
START = b"POST /tokenize HTTP/1.1\r\n"
CLOSE = b"connection: close\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--max-model-len", "128", "--num-blocks", "256", "--threads", "1") as running:
        yield running


def ask(server: Server, *parts: bytes) -> bytes:
    """The bytes received until the server closes, which it does after the sending side is shut."""
    answer = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as link:
        link.sendall(b"".join(parts))
        link.shutdown(socket.SHUT_WR)
        while more := link.recv(1 << 16):
            answer += more
    return answer


def statuses(answer: bytes) -> list[int]:
    """Of final answers: a peer that has ended its half may get an interim one."""
    found = [int(line.split()[1]) for line in answer.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    return [status for status in found if status != 100]


@pytest.mark.parametrize(
    "parts",
    [
        (START, HOST, CLOSE, LENGTH, b"\r\n", BODY),
        (START, HOST, CLOSE, CHUNKED, b"\r\n", CHUNKS),
        (START, HOST, CLOSE, CHUNKED, b"\r\n", CHUNKS.replace(b"e\r\n", b"e;name=value\r\n", 1)),
        (b"POST /tokenize HTTP/1.0\r\n", LENGTH, b"\r\n", BODY),
    ],
)
def test_the_plain_forms_are_accepted(server, parts):
    assert statuses(ask(server, *parts)) == [200]


@pytest.mark.parametrize(
    "parts",
    [
        (START, HOST, LENGTH, b"content-length: 15\r\n\r\n", BODY),
        (START, HOST, LENGTH, LENGTH, b"\r\n", BODY),
        *(
            (START, HOST, b"content-length: " + value + b"\r\n\r\n", BODY)
            for value in (b"+14", b"0xe", b"-1", b"14, 14")
        ),
        (START, HOST, b"content-length : 14\r\n\r\n", BODY),
        (START, HOST, LENGTH, CHUNKED, b"\r\n", CHUNKS),
        (START, HOST, CHUNKED, LENGTH, b"\r\n", CHUNKS),
        (START, HOST, CHUNKED, CHUNKED, b"\r\n", CHUNKS),
        (START, HOST, b"connection: upgrade\r\nupgrade: h2c\r\n", LENGTH, CHUNKED, b"\r\n", CHUNKS),
        *(
            (START, HOST, b"transfer-encoding: " + coding + b"\r\n\r\n", CHUNKS)
            for coding in (
                b"identity, chunked",
                b"chunked, identity",
                b"xchunked",
                b"gzip",
                b"\x0bchunked",
                b"identity",
            )
        ),
        (START, HOST, b"transfer-encoding:\r\n chunked\r\n\r\n", CHUNKS),
        (b"POST /tokenize HTTP/1.0\r\n", HOST, CHUNKED, b"\r\n", CHUNKS),
        (START, HOST, b"x: a\r\n b\r\n", LENGTH, b"\r\n", BODY),
        (START, HOST, b"x: a\rb\r\n", LENGTH, b"\r\n", BODY),
        (START, HOST, b"x: a\0b\r\n", LENGTH, b"\r\n", BODY),
        (START, HOST, b"x y: a\r\n", LENGTH, b"\r\n", BODY),
        (START, HOST, b": a\r\n", LENGTH, b"\r\n", BODY),
        (START.replace(b"\r", b""), HOST, LENGTH, b"\r\n", BODY),
        (START, HOST, CHUNKED, b"\r\n", CHUNKS.replace(b"\r", b"")),
        *((START, HOST, CHUNKED, b"\r\n", size + CHUNKS[1:]) for size in (b"0xe", b"-e", b"e ", b"e;a\nb")),
        (START, HOST, CHUNKED, b"\r\n", CHUNKS.replace(b"}\r\n", b"}")),
        (START, HOST, CHUNKED, b"\r\n", CHUNKS[:-2] + b"content-length: 5\r\n\r\n"),
        (b"GET /version\r\n\r\n",),
        (b"GET /version HTTP/2.0\r\n", HOST, b"\r\n"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",),
        (b"CONNECT localhost:80 HTTP/1.1\r\n", HOST, b"\r\n"),
    ],
)
def test_ambiguous_framing_is_refused_and_nothing_behind_it_is_read(server, parts):
    answer = ask(server, *parts, b"GET /version HTTP/1.1\r\n", HOST, b"\r\n")
    assert statuses(answer) == [400]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == 400


@pytest.mark.parametrize(
    "parts",
    [
        (b"GET /version HTTP/1.1\r\n", HOST, b"connection: upgrade\r\nupgrade: websocket\r\n\r\n"),
        (START, HOST, b"connection: upgrade\r\nupgrade: h2c\r\n", LENGTH, b"\r\n", BODY),
        (START, HOST, b"connection: upgrade\r\nupgrade: h2c\r\n", CHUNKED, b"\r\n", CHUNKS),
    ],
)
def test_nothing_is_read_behind_a_request_for_another_protocol(server, parts):
    answer = ask(server, *parts, b"GET /v1/models HTTP/1.1\r\n", HOST, b"\r\n")
    assert statuses(answer) == [200]
    assert b"connection: close" in answer


NAMES = [b"evil.example", b"evil.example:80", b"localhost.evil.example", b"127.0.0.1.nip.io", b"localhost@evil.example"]
NAMES += [
    b"0.0.0.0",
    b"[::]",
    b"127.0.0.1:80:80",
    b"127.0.0.1, evil.example",
    b"2130706433",
    b"127.1",
    b"\xc2\xb9.0.0.1",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", [b"/v1/models", b"//v1/models", b"/v1/models?host=localhost"])
def test_a_page_with_a_rebound_host_name_reads_nothing(server, name, target):
    status = 400 if set(name) & set(b"@, \xc2") else 403  # no host at all, or another one's
    assert statuses(ask(server, b"GET " + target + b" HTTP/1.1\r\nhost: " + name + b"\r\n\r\n")) == [status]


def test_the_host_of_an_absolute_uri_is_the_one_that_counts(server):
    for target, host, status in (
        (b"http://evil.example/v1/models", b"localhost", 403),
        (b"http://localhost/v1/models", b"evil.example", 200),
        (b"http://localhost/v1/models", b"a b", 400),
    ):
        request = b"GET " + target + b" HTTP/1.1\r\nconnection: close\r\nhost: " + host + b"\r\n\r\n"
        assert statuses(ask(server, request)) == [status]


def test_a_second_host_does_not_hide_the_first(server):
    for hosts in ((b"evil.example", b"localhost"), (b"localhost", b"evil.example"), (b"localhost", b"localhost"), ()):
        lines = b"".join(b"host: " + host + b"\r\n" for host in hosts)
        assert statuses(ask(server, b"GET /v1/models HTTP/1.1\r\n", lines, b"\r\n")) == [400]


@pytest.mark.parametrize(
    "origin", [b"http://evil.example", b"null", b"http://localhost.evil.example", b"http://localhost:1", b"file://"]
)
def test_pages_of_other_origins_get_no_answer_and_no_cors_permission(server, origin):
    for method in (b"POST /v1/completions", b"OPTIONS /v1/completions", b"GET /v1/models", b"POST /tokenize"):
        wish = b"origin: " + origin + b"\r\naccess-control-request-method: POST\r\n"
        answer = ask(server, method + b" HTTP/1.1\r\n", HOST, wish, LENGTH, b"\r\n", BODY)
        assert statuses(answer) == [403]
        assert b"access-control-" not in answer.lower()


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (b"a:\r\n" * 8_000, 431),
        (b"a: " + b"b" * 32_768 + b"\r\n", 431),
        (b"b" * 32_768 + b": a\r\n", 431),
        (b"a: " + b"b" * 30_000 + b"\r\n", 200),
    ],
)
def test_headers_are_bounded(server, lines, status):
    assert statuses(ask(server, START, HOST, CLOSE, lines, LENGTH, b"\r\n", BODY)) == [status]


def test_request_text_never_becomes_a_response_header(server):
    """Otherwise a path or an id with a line break would add a header."""
    for path, more in ((b"/%0d%0aset-cookie:%20x", b""), (b"/version", b"x-request-id: a b\r\n")):
        head, _, _ = ask(server, b"GET " + path + b" HTTP/1.1\r\n", HOST, more, CLOSE, b"\r\n").partition(b"\r\n\r\n")
        assert b"set-cookie" not in head.lower()
        assert b"x-request-id: a b" not in head
