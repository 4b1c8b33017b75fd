"""Answers before the server is imported, and requests that arrive before that."""

import json
import os
import socket
import subprocess
import sys

import pytest

from paged_serve.frontend.http.server.early_health import MAX_WAITING, EarlyHealth

LIVE = b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"
NOT_FOR_EARLY_HEALTH = [
    b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /lively HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b'POST /v1/completions HTTP/1.1\r\nContent-Length: 15\r\n\r\n{"prompt": "x"}',
    LIVE[:-2],
]


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        yield listener


@pytest.fixture
def early_health(listener):
    early_health = EarlyHealth(listener.fileno())
    yield early_health
    close_all(early_health.leave())


def close_all(links: list[socket.socket]) -> None:
    for link in links:
        link.close()


def call(listener: socket.socket, data: bytes = b"") -> socket.socket:
    link = socket.create_connection(listener.getsockname(), timeout=60)
    link.sendall(data)
    return link


def answer_to(link: socket.socket) -> bytes:
    answer = b""
    while more := link.recv(4096):
        answer += more
    return answer


def test_live_is_answered_every_time(listener, early_health):
    for _ in range(3):
        with call(listener, LIVE) as link:
            assert answer_to(link).startswith(b"HTTP/1.1 200 OK\r\n")


def test_other_requests_wait_unread_for_the_server(listener):
    early_health = EarlyHealth(listener.fileno())
    callers = [call(listener, data) for data in NOT_FOR_EARLY_HEALTH]
    with call(listener, LIVE) as link:  # accepted after the others, so those have been seen
        assert answer_to(link)
    waiting = early_health.leave()
    assert [link.recv(4096) for link in waiting] == NOT_FOR_EARLY_HEALTH
    close_all([*waiting, *callers])


def test_silent_and_closed_connections_delay_no_other_answer(listener, early_health):
    call(listener).close()
    call(listener, LIVE).close()
    with call(listener), call(listener, LIVE) as link:
        assert answer_to(link)


def test_connections_over_the_limit_stay_in_the_listen_queue(listener):
    early_health = EarlyHealth(listener.fileno())
    callers = [call(listener) for _ in range(MAX_WAITING - 1)]
    callers += [last := call(listener, LIVE), *(call(listener) for _ in range(5))]
    assert answer_to(last)
    waiting = early_health.leave()
    assert len(waiting) == MAX_WAITING - 1
    listener.settimeout(10)
    in_queue = [listener.accept()[0] for _ in range(5)]
    close_all([*callers, *waiting, *in_queue])


def test_the_socket_stays_open_when_early_health_ends(listener):
    EarlyHealth(listener.fileno()).leave()
    with call(listener), listener.accept()[0]:
        pass


def test_a_frontend_imports_next_to_nothing_before_it_answers_live():
    early_health = "from paged_serve.frontend.http.server.early_health import EarlyHealth"
    code = f"import json, sys; before = {{*sys.modules}}; {early_health}\n"
    code += "print(json.dumps([*({*sys.modules} - before)]))"
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    heavy = {"asyncio", "argparse", "click", "logging", "msgspec", "pathlib", "ssl", "uvicorn", "uvloop", "zmq"}
    assert not heavy & set(json.loads(done.stdout))
