"""Requests that a stop cuts off: they end with 503 and the time to retry, and the log shows no failure."""

import contextlib
import json
import socket

from paged_serve.frontend.http.stored_responses.database import Database
from paged_serve.protocol.messages import control
from paged_serve.protocol.messages.engine_core import EngineCoreRequest
from paged_serve.protocol.transport.run_dir import FRONTEND_SOCKET

from ...fake_core import POOLING, output

CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 8, "model": "tiny"}
GENERATING = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": CHAT,
    "/v1/responses": {"input": "x", "store": False},
    "/v1/messages": CHAT,
    "/invocations": CHAT,
}
BACKGROUND = {"input": "x", "background": True}


def asked(frontend, path: str, body: dict, *headers: str, missing: int = 0) -> socket.socket:
    """A connection that has sent a request, except for the last `missing` bytes of its body."""
    text = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(text)}", *headers]
    link = socket.create_connection(("127.0.0.1", frontend.port), timeout=60)
    link.sendall("\r\n".join([*lines, "", ""]).encode() + text[: len(text) - missing])
    return link


def rest_of(link: socket.socket) -> bytes:
    answer = b""
    while part := link.recv(65536):
        answer += part
    return answer


def check_error(path: str, body: bytes) -> None:
    error = json.loads(body)["error"]
    assert error["type"] == ("overloaded_error" if path == "/v1/messages" else "ServiceUnavailableError"), path
    assert error["message"] == "The server is shutting down; retry in a moment.", path


def test_requests_that_a_stop_cuts_off_may_be_retried(capfd, tmp_path, start_frontend, start_core):
    core = start_core(tasks=("generate", *POOLING["tasks"]), embedding_size=8, num_labels=3)
    frontend = start_frontend(store_responses=str(tmp_path))
    frontend.wait_for(control.Ready)
    with contextlib.ExitStack() as links:

        def begun(path: str, body: dict, key: str = "") -> tuple[str, socket.socket]:
            headers = [f"idempotency-key: {key}-{path}"] if key else []
            return path, links.enter_context(asked(frontend, path, body, *headers))

        paths = {**GENERATING, "/v1/embeddings": {"input": "x"}}
        cut = [begun(path, body, key) for path, body in paths.items() for key in ("", "whole")]
        streams = [
            begun(path, body | {"stream": True}, key)
            for path, body in [*GENERATING.items(), ("/v1/responses", BACKGROUND)]
            for key in ("", "stream")
        ]
        for request in core.wait_for(EngineCoreRequest, len(cut) + len(streams)):
            if request.pooling_params is None:
                core.do(output(core.epoch, request.request_id, 0, [65]))
        heads = [link.recv(12) for _, link in streams]
        frontend.send(control.Drain())
        frontend.send(control.Stop())
        assert frontend.process.wait(60) == 0
        for path, link in cut:
            head, _, body = rest_of(link).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 "), path
            assert b"\r\nretry-after: 5\r\n" in head, path
            check_error(path, body)
        for (path, link), head in zip(streams, heads, strict=True):
            assert head == b"HTTP/1.1 200"
            answer = rest_of(link)
            check_error(path, [line for line in answer.splitlines() if line.startswith(b"data: {")][-1][6:])
            assert answer.endswith(b"0\r\n\r\n"), path
    assert "Traceback" not in capfd.readouterr().err
    assert len(Database(str(tmp_path), 1 << 20, 1).jobs()) == 2, "the next process continues them"


def test_connections_of_a_frontend_that_ends_alone_break_without_an_error(capfd, start_frontend, start_core):
    core, frontend = start_core(), start_frontend()
    frontend.wait_for(control.Ready)
    path, body = "/v1/completions", GENERATING["/v1/completions"]
    expects = "expect: 100-continue"
    with asked(frontend, path, body) as whole, asked(frontend, path, body, expects, missing=3) as incomplete:
        assert incomplete.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        core.wait_for(EngineCoreRequest)
        frontend.process.terminate()
        assert frontend.process.wait(60) == 0
        assert rest_of(whole) + rest_of(incomplete) == b"", "clients repeat a request after a break, not after an error"
    assert "Traceback" not in capfd.readouterr().err


def test_a_frontend_that_ends_alone_takes_no_more_requests_from_others(run_dir, start_frontend, start_core):
    """They ask its successor, whereas a client may not ask again after an error."""
    start_core()
    frontend = start_frontend(num_frontends=2)
    frontend.wait_for(control.Ready)
    path, body = f"{run_dir}/{FRONTEND_SOCKET.format(0)}", json.dumps(GENERATING["/v1/completions"]).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    with contextlib.ExitStack() as links:

        def connected() -> socket.socket | None:
            link = links.enter_context(socket.socket(socket.AF_UNIX))
            link.settimeout(60)
            try:
                link.connect(path)
                link.sendall(request)
            except OSError:
                return None
            return link

        early = connected()
        frontend.process.terminate()
        late = [early]
        while (link := connected()) is not None:
            late.append(link)
        assert frontend.process.wait(60) == 0
        answers = []
        for link in late:
            with contextlib.suppress(ConnectionError):
                answers.append(rest_of(link))
    assert set(answers) <= {b""}, "a request that came late has an answer"
