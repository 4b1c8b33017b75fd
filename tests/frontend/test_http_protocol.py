"""Odd senders: slow, endless, too eager or gone; each is told what is wrong and closed, and a slow answer is not."""

import asyncio
import contextlib
import json
import socket

import pytest
import uvicorn

from paged_serve.frontend.http import protocol


class Application:
    """Answers after 0.3 s, or as soon as the body has come; counts those that left without their answer."""

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


def exchange(*parts: bytes, application: Application | None = None, leave_after_s: float = 5.0) -> bytes:
    """What a server with short deadlines answers to these bytes, which come 0.05 s apart."""

    async def talk() -> bytes:
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(
            application or Application(),
            http=protocol.LimitedHttpProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server._serve([listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.05)
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

    return asyncio.run(talk())


GET = b"GET /%d HTTP/1.1\r\nhost: localhost\r\n\r\n"


def test_slow_requests_are_ended_and_slow_answers_are_not(monkeypatch):
    monkeypatch.setattr(protocol, "HEADERS_WITHIN_S", 0.15)
    monkeypatch.setattr(protocol, "BODY_WITHIN_S", 0.15)
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 4\r\n\r\n"
    for slow in ([], [b"POST"], [b"POST / HTTP/1.1\r\n", b"a: b\r\n"], [head], [head, b"ab"]):
        first, _, body = exchange(*slow).partition(b"\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 408"), slow
        assert json.loads(body)["error"]["type"] == "RequestTimeoutError"
    assert exchange(head, b"ab", b"cd").endswith(b"ok")


def test_line_breaks_do_not_keep_a_connection(monkeypatch):
    monkeypatch.setattr(protocol, "HEADERS_WITHIN_S", 0.15)
    answer = exchange(GET % 1, b"", b"\r\n", application=Application(0.01), leave_after_s=2.0)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 408" in answer


@pytest.mark.parametrize("bad", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nx: " + b"a" * 40000 + b"\r\n\r\n"])
def test_a_connection_that_served_before_is_told_what_is_wrong(bad):
    answer = exchange(GET % 1, b"", bad, application=Application(0.01), leave_after_s=2.0)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b"HTTP/1.1 4") == 1


def test_a_refusal_arrives_though_the_peer_goes_on_sending():
    flood = b"GET / HTTP/1.1\r\nx: " + b"a" * (8 << 20)
    assert exchange(flood, b"a" * (1 << 20)).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize(
    "pieces",
    [[b"0\r\n", *[b"name: value\r\n" * 30_000] * 3], [b"1;" + b"x" * 1_200_000], [b"1\r\nx\r\n" * 220_000]],
    ids=["trailers", "chunk extensions", "tiny chunks"],
)
def test_a_body_cannot_grow_beside_itself(pieces):
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    application = Application()
    assert exchange(head, *pieces, application=application).startswith(b"HTTP/1.1 400")
    assert len(application.headers) == 2


@pytest.mark.parametrize("parts", [[GET % 1 + GET % 2], [GET % 1, GET % 2]], ids=["together", "one after the other"])
def test_a_request_behind_another_is_not_begun_and_the_peer_is_told(parts):
    application = Application()
    answer = exchange(*parts, application=application)
    assert answer.endswith(b"\r\n\r\nok")
    assert b"connection: close" in answer
    assert application.paths == ["/1"]


@pytest.mark.parametrize("parts", [[GET % 1 + GET % 2], [GET % 1, GET % 2]], ids=["together", "one after the other"])
def test_leaving_is_noticed_though_another_request_has_come(parts):
    application = Application(delay_s=5.0)
    assert exchange(*parts, application=application, leave_after_s=0.1) == b""
    assert application.left == 1
