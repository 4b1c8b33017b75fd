"""A page of another origin, and a proxy that serves under a prefix, with a real server of two frontends."""

import http.client
import json
import socket
import uuid

import pytest

from ..serving import Server

APP = "https://app.example"
COMPLETIONS = "/llm/v1/completions"
ASK = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
NUM_TIMES = 8  # each connection reaches either frontend


@pytest.fixture
def server(two_frontends: Server) -> Server:
    """Pages of APP and of files may ask it, as llm.example, and a proxy may serve it under /llm."""
    return two_frontends


def ask(
    server: Server, method: str, path: str, body: object = None, **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    named = {"Host": "llm.example", "Origin": APP} | {name.replace("_", "-"): value for name, value in headers.items()}
    link.request(method, path, None if body is None else json.dumps(body), named)
    with link.getresponse() as answer:
        text = answer.read()
    link.close()
    return answer, text


def test_a_page_sends_a_preflight_and_then_reads_answers_streams_and_errors(server):
    wish = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "content-type"}
    permission, text = ask(server, "OPTIONS", COMPLETIONS, **wish)
    assert (permission.status, text) == (204, b"")
    assert permission.headers["access-control-allow-headers"] == "content-type"
    for fields, status, end in (({}, 200, b"}"), ({"stream": True}, 200, b"[DONE]\n\n"), ({"n": 0}, 400, b"}")):
        answer, text = ask(server, "POST", COMPLETIONS, ASK | fields)
        assert (answer.status, text.endswith(end)) == (status, True)
        assert answer.headers.get_all("access-control-allow-origin") == [APP]
        assert "retry-after" in answer.headers["access-control-expose-headers"]


def test_an_answer_from_the_other_frontend_is_allowed_once(server):
    for _ in range(NUM_TIMES):
        answer, _ = ask(server, "POST", COMPLETIONS, ASK, Idempotency_Key=uuid.uuid4().hex)
        assert answer.status == 200
        assert answer.headers.get_all("access-control-allow-origin") == [APP]
        assert answer.headers.get_all("vary") == ["Origin"]


def test_other_pages_and_hosts_are_refused(server):
    assert ask(server, "POST", COMPLETIONS, ASK, Origin="https://evil.example")[0].status == 403
    assert ask(server, "GET", "/llm/v1/models", Host="evil.example")[0].status == 403
    assert ask(server, "GET", "/llm/v1/models", Origin="null")[0].status == 200


def test_a_proxy_may_strip_the_prefix_and_use_http_1_0(server):
    body = json.dumps(ASK | {"stream": True}).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as link:
        head = b"POST /v1/completions HTTP/1.0\r\nhost: llm.example\r\ncontent-length: %d\r\n\r\n" % len(body)
        link.sendall(head + body)
        answer = b"".join(iter(lambda: link.recv(1 << 16), b""))
    head, _, events = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert events.startswith(b"data: {")
    assert events.endswith(b"data: [DONE]\n\n")


def test_the_page_is_found_behind_the_prefix(server):
    moved, _ = ask(server, "GET", "/llm")
    assert (moved.status, moved.headers["location"]) == (308, "/llm/")
    page, text = ask(server, "GET", "/llm/")
    assert page.status == 200
    assert b'fetch("/' not in text, "its links are relative to its path"
    assert json.loads(ask(server, "GET", "/llm/openapi.json")[1])["servers"] == [{"url": "/llm"}]
