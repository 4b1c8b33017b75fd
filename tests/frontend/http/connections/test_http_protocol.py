"""Unusual peers, slow, endless, pipelining or gone: each gets its error and is closed; a slow answer is not."""

import asyncio
import contextlib
import json
import socket

import pytest
import uvicorn

from paged_serve.frontend.http.connections import http_protocol
from paged_serve.frontend.http.server.uvicorn_server import uvicorn_config

from ...virtual_time import VirtualTimeLoop


class Application:
    """Answers after 0.3 s, or as soon as the body is complete; counts peers that left without an answer."""

    def __init__(self, delay_s: float = 0.3):
        self.delay_s = delay_s
        self.paths: list[str] = []
        self.left = 0
        self.headers: list[tuple[bytes, bytes]] = []

    async def __call__(self, scope, receive, send):
        self.paths.append(scope["path"])
        self.headers = scope["headers"]
        while (await receive()).get("more_body"):
            pass
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.delay_s):
                await receive()
                self.left += 1
                return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


def exchange(
    *parts: bytes,
    application=None,
    leave_after_s: float = 5.0,
    half_close: bool = False,
    page_headers=http_protocol.no_page_headers,
) -> bytes:
    """The answer of a server with short deadlines to these bytes, sent 0.05 s apart in virtual time."""

    async def talk() -> bytes:
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn_config(application or Application(), page_headers=page_headers))
        serving = asyncio.create_task(server._serve([listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.05)
        if half_close:
            writer.write_eof()
        answer = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(leave_after_s):
                while more := await reader.read(65536):
                    answer += more
        writer.close()
        await asyncio.sleep(0.05)
        server.should_exit = server.force_exit = True
        await serving
        listener.close()
        return answer

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(talk())


GET = b"GET /%d HTTP/1.1\r\nhost: localhost\r\n\r\n"


def test_slow_requests_are_ended_and_slow_answers_are_not(monkeypatch):
    monkeypatch.setattr(http_protocol, "HEADERS_WITHIN_S", 0.15)
    monkeypatch.setattr(http_protocol, "BODY_WITHIN_S", 0.15)
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 4\r\n\r\n"
    for slow in ([], [b"POST"], [b"POST / HTTP/1.1\r\n", b"a: b\r\n"], [head], [head, b"ab"]):
        first, _, body = exchange(*slow).partition(b"\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 408"), slow
        assert json.loads(body)["error"]["type"] == "RequestTimeoutError"
    assert exchange(head, b"ab", b"cd").endswith(b"ok")
    slow_message = exchange(head.replace(b"POST /", b"POST /v1/messages"), b"ab").partition(b"\r\n\r\n")[2]
    assert json.loads(slow_message)["error"]["type"] == "timeout_error"


async def refusing(scope, receive, send):
    """An application that decides by the headers alone."""
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"no"})


def test_a_request_whose_body_does_not_follow_its_answer_gets_no_second_one(monkeypatch):
    monkeypatch.setattr(http_protocol, "BODY_WITHIN_S", 0.15)
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\n"
    for parts in (
        [head],
        [head, b"ab"],
        [head.replace(b"content-length: 4", b"transfer-encoding: chunked"), b"zz\r\n"],
    ):
        answer = exchange(*parts, application=refusing)
        assert (answer[:12], answer[-2:], answer.count(b"HTTP/1.1")) == (b"HTTP/1.1 401", b"no", 1)
    assert exchange(head, b"abcd", GET % 1, application=refusing, leave_after_s=0.5).count(b"HTTP/1.1 401") == 2


def test_a_peer_that_waits_to_be_asked_for_the_body_is_told_that_the_connection_ends_instead(monkeypatch):
    monkeypatch.setattr(http_protocol, "LINGER_S", 0.05)
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n"
    answer = exchange(head, GET % 1, application=refusing)
    assert (answer[:12], answer[-2:], answer.count(b"HTTP/1.1")) == (b"HTTP/1.1 401", b"no", 1)
    assert b"connection: close" in answer


def test_a_peer_whose_body_is_refused_already_is_not_asked_for_it(caplog):
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n"
    answer = exchange(head + b"zz\r\n")
    assert (answer[:12], answer.count(b"HTTP/1.1")) == (b"HTTP/1.1 400", 1)
    assert not caplog.records


def test_an_answer_arrives_although_the_peer_has_yet_to_send_the_body():
    """A closed socket answers further data with a reset, at which some clients report a failure and no answer."""
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (8 << 20)
    answer = exchange(head, *[b"a" * (2 << 20)] * 4, application=refusing)
    assert (answer[:12], answer[-2:]) == (b"HTTP/1.1 401", b"no")


def test_line_breaks_do_not_keep_a_connection_open(monkeypatch):
    monkeypatch.setattr(http_protocol, "HEADERS_WITHIN_S", 0.15)
    answer = exchange(GET % 1, b"", b"\r\n", application=Application(0.01), leave_after_s=2.0)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 408" in answer


@pytest.mark.parametrize("bad", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nx: " + b"a" * 40000 + b"\r\n\r\n"])
def test_a_reused_connection_receives_the_error(bad):
    answer = exchange(GET % 1, b"", bad, application=Application(0.01), leave_after_s=2.0)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b"HTTP/1.1 4") == 1


def test_a_refusal_arrives_while_the_peer_is_still_sending():
    flood = b"GET / HTTP/1.1\r\nx: " + b"a" * (8 << 20)
    assert exchange(flood, b"a" * (1 << 20)).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize(
    "pieces",
    [[b"0\r\n", *[b"name: value\r\n" * 30_000] * 3], [b"1;" + b"x" * 1_200_000], [b"1\r\nx\r\n" * 220_000]],
    ids=["trailers", "chunk extensions", "tiny chunks"],
)
def test_chunk_extensions_and_trailers_cannot_grow_a_body(pieces):
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    application = Application()
    assert exchange(head, *pieces, application=application).startswith(b"HTTP/1.1 400")
    assert len(application.headers) == 2


@pytest.mark.parametrize("parts", [[GET % 1 + GET % 2], [GET % 1, GET % 2]], ids=["together", "one after the other"])
def test_a_pipelined_request_is_not_begun_and_the_connection_is_closed(parts):
    application = Application()
    answer = exchange(*parts, application=application)
    assert answer.endswith(b"\r\n\r\nok")
    assert b"connection: close" in answer
    assert application.paths == ["/1"]


@pytest.mark.parametrize("parts", [[GET % 1 + GET % 2], [GET % 1, GET % 2]], ids=["together", "one after the other"])
def test_a_disconnect_is_noticed_after_a_pipelined_request(parts):
    application = Application(delay_s=5.0)
    assert exchange(*parts, application=application, leave_after_s=0.1) == b""
    assert application.left == 1


HALF_CLOSED = b"POST /1 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\nab"


@pytest.mark.parametrize("request_bytes", [GET % 1, HALF_CLOSED, b"GET /1 HTTP/1.0\r\n\r\n"])
def test_a_half_closed_client_gets_its_answer(request_bytes):
    application = Application()
    answer = exchange(request_bytes, application=application, half_close=True)
    interim, final = b"HTTP/1.1 100 Continue\r\n\r\n", answer
    if b"HTTP/1.1" in request_bytes:
        assert answer.startswith(interim)  # it shows whether the peer is still there
        final = answer.removeprefix(interim)
    assert final.startswith(b"HTTP/1.1 200")
    assert final.endswith(b"ok")
    assert application.left == 0


def test_an_incomplete_request_is_not_run(monkeypatch):
    application = Application(0.01)
    assert exchange(HALF_CLOSED[:-1], application=application, half_close=True) == b""


def test_a_full_close_is_distinguished_from_a_half_close():
    application = Application(delay_s=5.0)
    assert exchange(HALF_CLOSED, application=application, leave_after_s=0.05) == b""
    assert application.left == 1


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n",
        b"GET / HTTP/1.0\r\nhost: localhost\r\nhost: other\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a b\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a/b\r\n\r\n",
        b"GET http://user@localhost/ HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET http:/// HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
)
def test_a_request_without_one_clear_host_is_refused(head):
    application = Application(0.01)
    first, _, body = exchange(head, application=application).partition(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 400")
    assert json.loads(body)["error"]["type"] == "BadRequestError"
    assert application.paths == []


@pytest.mark.parametrize(
    ("target", "host"),
    [(b"http://evil.example/x", b"evil.example"), (b"http://[::1]:80/x", b"[::1]:80"), (b"/x", b"localhost")],
)
def test_the_host_of_an_absolute_uri_counts_and_not_the_header(target, host):
    application = Application(0.01)
    exchange(b"GET %s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" % target, application=application)
    assert [value for name, value in application.headers if name == b"host"] == [host]
    assert application.paths == ["/x"]


async def stream(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for part in (b"data: 1\n\n", b"data: 2\n\n", b""):
        await send({"type": "http.response.body", "body": part, "more_body": bool(part)})


def test_a_stream_to_http_1_0_has_no_chunks_and_ends_with_its_connection():
    head, _, body = exchange(b"GET / HTTP/1.0\r\n\r\n", application=stream).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body == b"data: 1\n\ndata: 2\n\n"
    chunked = exchange(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", application=stream)
    assert b"\r\n\r\n9\r\ndata: 1\n\n\r\n9\r\n" in chunked


async def echo(_scope, receive, send):
    body, more = b"", True
    while more:
        event = await receive()
        body, more = body + event["body"], event["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"<%s>" % body})


UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\n"
WITH_LENGTH = b"POST / HTTP/1.1\r\n" + UPGRADE + b"host: localhost\r\ncontent-length: 4\r\n\r\nbody"
IN_CHUNKS = WITH_LENGTH.replace(
    b"content-length: 4\r\n\r\nbody", b"transfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"
)


@pytest.mark.parametrize("request_bytes", [WITH_LENGTH, IN_CHUNKS])
@pytest.mark.parametrize("split", [None, 30, -16, -10, -4, -3])
def test_a_body_behind_an_upgrade_header_which_javas_client_sends_is_read(request_bytes, split):
    parts = [request_bytes[:split], request_bytes[split:]] if split else [request_bytes]
    head, _, body = exchange(*parts, application=echo).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in head
    assert b"<body>" in body


def test_a_large_or_slow_head_with_an_upgrade_header_is_refused_like_any_other(monkeypatch):
    monkeypatch.setattr(http_protocol, "BODY_WITHIN_S", 0.15)
    for request_bytes, status in (
        (WITH_LENGTH.replace(b"host:", b"x: " + b"x" * (33 << 10) + b"\r\nhost:"), 431),
        (WITH_LENGTH.replace(b"host: localhost\r\n", b""), 400),
        (WITH_LENGTH[:-1], 408),
    ):
        assert exchange(request_bytes, application=echo).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    ("start", "name"),
    [
        (bytes.fromhex("16030100dc010000d80303"), "TLS"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/2"),
        (b"PROXY TCP4 192.0.2.1 192.0.2.2 1234 80\r\n" + GET % 1, "the PROXY protocol"),
        (b"\r\n\r\n\0\r\nQUIT\n!\x11\0\x0c" + bytes(12) + GET % 1, "the PROXY protocol"),
    ],
)
def test_a_connection_that_begins_with_another_protocol_is_told_so(start, name):
    head, _, body = exchange(start).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["message"].startswith(f"The connection began with {name}")
