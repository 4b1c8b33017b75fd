"""Web pages and proxies may use exactly what the operator allowed by name."""

import asyncio
import json

import pytest

from paged_serve.frontend.http.exchange.browsers import BrowserPolicy
from paged_serve.frontend.http.server.admin_server import AdminServer
from paged_serve.frontend.listen import open_http_socket
from paged_serve.protocol.errors import ConfigError, EngineDead, Overloaded
from paged_serve.protocol.messages.config import ServerConfig

from ...http_server import Server
from ..connections.test_http_protocol import exchange

APP = "https://app.example"
COMPLETIONS = "/v1/completions"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type, x-stainless-os",
}


def permissions(response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith("access-control-")}


def open_server(folder, *origins: str, **options: object) -> Server:
    return Server(folder, options={"allowed_origins": origins or (APP,), "api_keys": ("one",), **options})


def test_a_preflight_of_an_allowed_page_is_answered_before_the_key(folder):
    server = open_server(folder)
    answer = server.ask("OPTIONS", COMPLETIONS, origin=APP, **PREFLIGHT)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["vary"] == "Origin"
    assert permissions(answer) == {
        "access-control-allow-origin": APP,
        "access-control-allow-methods": "POST",
        "access-control-allow-headers": PREFLIGHT["access-control-request-headers"],
        "access-control-expose-headers": "x-request-id, request-id, retry-after, retry-after-ms, x-should-retry",
        "access-control-max-age": "600",
    }
    assert server.ask("POST", COMPLETIONS, {"prompt": "x"}, origin=APP).status_code == 401
    allowed = server.ask("POST", COMPLETIONS, {"prompt": "x"}, origin=APP, authorization="Bearer one")
    assert allowed.status_code == 200


@pytest.mark.parametrize("path", ["/live", "/health", "/ready", "/v1/models", "/nothing"])
def test_a_preflight_opens_no_route(folder, path):
    server = open_server(folder)
    server.engine.ready = False
    assert server.ask("OPTIONS", path, origin=APP, **PREFLIGHT).status_code == 204
    for lacks in ({"origin": APP}, {"origin": "https://evil.example", **PREFLIGHT}, PREFLIGHT):
        answer = server.ask("OPTIONS", path, **lacks)
        assert answer.status_code in (401, 403) or path in ("/live", "/health"), lacks
        assert answer.status_code != 204
    assert server.ask("GET", "/v1/models", origin=APP, **PREFLIGHT).status_code == 401


def test_methods_and_headers_can_be_named(folder):
    server = open_server(folder, allowed_methods=("GET", "POST"), allowed_headers=("Authorization",))
    answer = server.ask("OPTIONS", COMPLETIONS, origin=APP, **{"access-control-request-method": "DELETE"})
    assert answer.headers["access-control-allow-methods"] == "GET, POST"
    assert answer.headers["access-control-allow-headers"] == "Content-Type, Authorization"


def test_a_header_that_is_not_a_list_of_words_is_not_echoed(folder):
    wishes = {"access-control-request-method": "a b", "access-control-request-headers": 'x", <y>'}
    answer = open_server(folder).ask("OPTIONS", COMPLETIONS, origin=APP, **wishes)
    assert "access-control-allow-methods" not in answer.headers
    assert "access-control-allow-headers" not in answer.headers


@pytest.mark.parametrize(
    ("refusal", "body", "status"),
    [
        (Overloaded("full", 2.0), {"prompt": "x"}, 429),
        (EngineDead("gone"), {"prompt": "x"}, 500),
        (None, {"prompt": "x", "temprature": 1}, 400),
        (None, {"prompt": "x"}, 200),
        (None, {"prompt": "x", "stream": True}, 200),
    ],
)
def test_only_an_allowed_page_can_read_an_answer(folder, refusal, body, status):
    server = open_server(folder)
    server.engine.refusal = refusal
    for origin, allowed in ((APP, True), (APP.upper(), True), ("http://localhost", False)):  # the last: its own
        answer = server.ask("POST", COMPLETIONS, body, origin=origin, authorization="Bearer one")
        assert answer.status_code == status
        assert answer.headers["vary"] == "Origin"
        assert answer.headers.get("access-control-allow-origin") == (origin if allowed else None)
        exposed = answer.headers.get("access-control-expose-headers", "")
        assert ("x-request-id" in exposed, "retry-after" in exposed) == (allowed, allowed)
    assert server.ask("GET", "/v1/models").headers["vary"] == "Origin", "a cache must store one answer per origin"


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", f"{APP}.evil", "http://app.example", f"{APP}:1", "null", f"{APP}, x"],
)
def test_other_pages_are_refused(folder, origin):
    server = open_server(folder)
    for method, wish in (("POST", {}), ("OPTIONS", PREFLIGHT), ("GET", {})):
        answer = server.ask(method, COMPLETIONS, {"prompt": "x"}, origin=origin, authorization="Bearer one", **wish)
        assert answer.status_code == 403
        assert "--allowed-origins" in answer.json()["error"]["message"]
        assert not permissions(answer)
    assert not server.engine.requests


def test_without_allowed_origins_no_answer_has_cors_headers(folder):
    server = Server(folder)
    for answer in (server.ask("GET", "/v1/models"), server.ask("GET", "/v1/models", origin="http://localhost")):
        assert answer.status_code == 200
        assert not permissions(answer)
        assert "vary" not in answer.headers


def test_with_any_origin_all_pages_get_the_same_headers(folder):
    server = open_server(folder, "*")
    for origin in ({"origin": APP}, {"origin": "null"}, {}):
        answer = server.ask("GET", "/v1/models", authorization="Bearer one", **origin)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")
        assert "vary" not in answer.headers


@pytest.mark.parametrize(
    ("written", "sent"), [("https://APP.example:443", APP), ("http://a:80", "http://a"), ("null", "null")]
)
def test_an_origin_is_compared_in_the_form_that_browsers_send(folder, written, sent):
    answer = open_server(folder, written).ask("GET", "/v1/models", origin=sent, authorization="Bearer one")
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, sent)


def test_cookies_are_only_for_named_origins(folder):
    answer = open_server(folder, allow_credentials=True).ask("OPTIONS", COMPLETIONS, origin=APP, **PREFLIGHT)
    assert answer.headers["access-control-allow-credentials"] == "true"
    with pytest.raises(ConfigError, match="name the origins"):
        open_http_socket(ServerConfig(port=0, allowed_origins=("*",), allow_credentials=True))


def test_a_page_of_a_public_address_may_reach_a_local_server_that_names_it(folder):
    asks = {**PREFLIGHT, "access-control-request-private-network": "true"}
    answer = Server(folder, options={"allowed_origins": (APP,)}).ask("OPTIONS", COMPLETIONS, origin=APP, **asks)
    assert answer.headers["access-control-allow-private-network"] == "true"


def test_refusals_of_the_connection_itself_can_be_read_by_the_page(folder):
    policy = BrowserPolicy(ServerConfig(allowed_origins=(APP,)))
    for fault in (b"transfer-encoding: gzip\r\n", b"x: " + b"a" * 40_000 + b"\r\n"):
        for origin, allowed in ((APP.encode(), True), (b"https://evil.example", False)):
            head = b"POST / HTTP/1.1\r\nhost: localhost\r\norigin: " + origin + b"\r\n" + fault + b"\r\n"
            answer = exchange(head, page_headers=policy.answer_headers)
            assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))
            assert (b"access-control-allow-origin: " + origin in answer) == allowed
            assert b"vary: Origin" in answer


@pytest.mark.parametrize(
    ("keys", "allowed", "good", "bad"),
    [
        ((), (), "localhost", "llm.example"),
        ((), ("llm.example", "*.lan"), "LLM.example:8000", "evil.example"),
        ((), ("llm.example", "*.lan"), "a.b.lan", "lan"),
        ((), ("fd00::1",), "[fd00::1]:80", "[fd00::2]:80"),
        ((), ("llm.example",), "127.0.0.1:8000", "llm.example.evil"),
        ((), ("*",), "evil.example", None),
        (("one",), (), "evil.example", None),
        (("one",), ("llm.example",), "llm.example", "evil.example"),
    ],
)
def test_hosts_are_allowed_by_name(folder, keys, allowed, good, bad):
    server = Server(folder, options={"api_keys": keys, "allowed_hosts": allowed})
    assert server.ask("GET", "/v1/models", host=good, authorization="Bearer one").status_code == 200
    if bad is not None:
        refused = server.ask("GET", "/v1/models", host=bad, authorization="Bearer one")
        assert (refused.status_code, "--allowed-hosts" in refused.text) == (403, True)


def test_a_preflight_needs_the_right_host_too(folder):
    server = Server(folder, options={"allowed_origins": (APP,)})
    assert server.ask("OPTIONS", COMPLETIONS, origin=APP, **PREFLIGHT).status_code == 204
    assert server.ask("OPTIONS", COMPLETIONS, origin=APP, host="evil.example", **PREFLIGHT).status_code == 403


@pytest.mark.parametrize("prefix", ["", "/llm"])
def test_a_proxy_may_strip_the_root_path_or_not(folder, prefix):
    server = Server(folder, options={"root_path": "/llm"})
    for path in ("/live", "/ready", "/v1/models", "/v1/models/tiny", "/"):
        assert server.ask("GET", prefix + path).status_code == 200, path
    assert server.ask("POST", f"{prefix}/v1/completions", {"prompt": "x"}).status_code == 200
    assert server.ask("GET", f"{prefix}/openapi.json").json()["servers"] == [{"url": "/llm"}]


def test_a_root_path_opens_no_other_path_and_leads_to_the_page(folder):
    server = Server(folder, options={"root_path": "/llm"})
    assert [server.ask("GET", path).status_code for path in ("/llmx/v1/models", "/llm/llm/v1/models")] == [404, 404]
    to_page = server.ask("GET", "/llm")
    assert (to_page.status_code, to_page.headers["location"]) == (308, "/llm/")
    keyed = Server(folder, options={"root_path": "/llm", "api_keys": ("one",)})
    assert keyed.ask("GET", "/llm/v1/models").status_code == keyed.ask("GET", "/llm").status_code == 401
    assert "servers" not in Server(folder).ask("GET", "/openapi.json").json()


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/completions/", "/v1/completions"),
        ("/v1/model/tiny", "/v1/models"),
        ("/v1/tokenize", "/tokenize"),
        ("/healthz", "/health"),
        ("/readyz", "/ready"),
    ],
)
def test_a_404_names_the_nearest_route(folder, wrong, meant):
    error = Server(folder).ask("POST", wrong, {}).json()["error"]
    assert (error["code"], error["message"]) == (404, f"There is no {wrong} here; did you mean {meant}?")


@pytest.mark.parametrize("meant", ["/v1/models", "/v1/responses"])
def test_a_slash_at_the_end_is_not_the_name_of_nothing(folder, meant):
    error = Server(folder).ask("GET", f"{meant}/").json()["error"]
    assert (error["code"], error["message"]) == (404, f"There is no {meant}/ here; did you mean {meant}?")


def test_a_404_suggests_nothing_if_no_route_is_near(folder):
    server = Server(folder)
    for path in ("/v1/nothing", "/admin", "/v1/" + "x" * 5000):
        assert server.ask("GET", path).json()["error"]["message"].endswith("; /openapi.json lists all routes.")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", COMPLETIONS, {"POST"}),
        ("DELETE", "/v1/models", {"GET", "HEAD"}),
        ("POST", "/live", {"GET", "HEAD"}),
        ("POST", "/v1/streams/x", {"GET", "HEAD", "DELETE"}),
    ],
)
def test_a_405_names_the_methods(folder, method, path, allowed):
    answer = Server(folder).ask(method, path)
    assert answer.status_code == 405
    assert {*answer.headers["allow"].split(", ")} == allowed


def test_an_http_1_0_client_gets_no_chunks_and_no_interim_answer(folder):
    server = Server(folder)
    for more in ({}, {"stream": True}):
        body = json.dumps({"prompt": "x", **more}).encode()
        lines = (b"POST /v1/completions HTTP/1.0", b"expect: 100-continue", b"connection: keep-alive")
        head = b"\r\n".join([*lines, b"content-length: %d" % len(body), b"", b""])
        answer = exchange(head, body, application=server.app)
        head, _, rest = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in head
        assert b"transfer-encoding" not in head
        assert rest.endswith(b"data: [DONE]\n\n") if more else json.loads(rest)["choices"]


async def status_of(application, headers: list[tuple[bytes, bytes]]) -> int:
    sent = []

    async def send(event: dict) -> None:
        sent.append(event)

    scope = {"type": "http", "method": "GET", "path": "/stats", "headers": headers, "client": ("127.0.0.1", 1)}
    await application(scope, None, send)
    return sent[0]["status"]


def test_no_page_may_use_the_operators_port(run_dir):
    admin = AdminServer(ServerConfig(admin_port=0, allowed_origins=("*",), allowed_hosts=("*",)), run_dir, 1)
    local, evil, page = (b"host", b"localhost"), (b"host", b"evil.example"), (b"origin", APP.encode())
    for headers, status in (([local], 503), ([local, page], 403), ([evil], 403)):  # 503: no model is loaded
        assert asyncio.run(status_of(admin, headers)) == status
    for listener in admin._listeners:  # nothing was served on them
        listener.close()
