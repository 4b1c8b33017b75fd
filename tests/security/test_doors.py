"""Every way to spell a request to a server with keys: none but the probes is answered without one."""

import asyncio
import itertools
import os
import random
import urllib.parse
from collections.abc import Iterator

import pytest

from paged_serve.frontend.http.exchange.auth import Guard
from paged_serve.frontend.http.page.page_files import FILES_BY_PATH
from paged_serve.frontend.http.routes.admin import ADMIN_ROUTES
from paged_serve.frontend.http.routes.table import public_routes
from paged_serve.frontend.http.server.app import Application
from paged_serve.protocol.messages.config import ServerConfig

from ..frontend.http_server import Server, make_model_folder

KEYS = ("correct-horse-battery-staple", "two")
CI_COUNT = 10_000
NIGHTLY_COUNT = int(os.environ.get("PAGED_SERVE_TEST_DOOR_COUNT", 1_000_000))
OPEN = {"/live", "/health", "/ping"}
PAGE = set(FILES_BY_PATH)  # static files that ask for the key

# A route is added here after a review of the keys that may use it, and of the facts that it reveals.
PUBLIC = {
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/responses/{id}"),
    ("DELETE", "/v1/responses/{id}"),
    ("POST", "/v1/responses/{id}/cancel"),
    ("GET", "/v1/responses/{id}/input_items"),
    ("POST", "/v1/chat/completions/batch"),
    ("POST", "/inference/v1/generate"),
    ("POST", "/invocations"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v2/embed"),
    ("POST", "/pooling"),
    ("POST", "/classify"),
    ("POST", "/score"),
    ("POST", "/v1/score"),
    ("POST", "/rerank"),
    ("POST", "/v1/rerank"),
    ("POST", "/v2/rerank"),
    ("GET", "/tokenizer_info"),
    ("POST", "/v1/messages/count_tokens"),
    ("GET", "/v1/streams/{id}"),
    ("HEAD", "/v1/streams/{id}"),
    ("DELETE", "/v1/streams/{id}"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model}"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/apply-template"),
    ("GET", "/load"),
    ("GET", "/version"),
    ("GET", "/openapi.json"),
    ("GET", "/"),
    ("GET", "/page/{file}"),
}
OPERATORS = {
    ("GET", "/metrics"),
    ("GET", "/metrics/own"),
    ("GET", "/stats"),
    ("GET", "/state"),
    ("POST", "/check"),
    ("POST", "/reset_prefix_cache"),
    ("POST", "/reset_mm_cache"),
    ("POST", "/reset_encoder_cache"),
    ("GET", "/v1/requests"),
    ("GET", "/v1/requests/own"),
    ("GET", "/server_info"),
}
ELSEWHERE = (
    "/pause",
    "/collective_rpc",
    "/update_weights",
    "/docs",
    "/inference",
)
PATHS = [*OPEN, "/page/app.js", "/ready", *sorted(path for _, path in PUBLIC | OPERATORS), *ELSEWHERE]
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "get", "LIVE", "PRI", ""]
BEFORE = [
    "",
    "/",
    "//",
    "/.",
    "/live/..",
    "/live",
    "/live?",
    "/%2e",
    "\\",
    "http://localhost",
    "/api",
    "/api/api",
    ";",
    "/live;",
]
AFTER = [
    "",
    "/",
    "//",
    "/live",
    "/../live",
    "?live",
    "#/live",
    ";/live",
    "%00",
    "\0",
    " ",
    "/.",
    "%2flive",
    ".json",
    "\r\n",
    "\u2025",
]
CHANGES = [
    str,
    str.upper,
    str.title,
    lambda path: path.replace("/", "//"),
    lambda path: path.replace("/", "%2f"),
    lambda path: path.replace("i", "%69"),
    lambda path: path.replace("i", "\u0131"),
    lambda path: path.replace("/", "\\"),
    lambda path: path.replace("/", "\u2215"),
    lambda path: urllib.parse.quote(path, safe=""),
    lambda path: urllib.parse.quote(urllib.parse.quote(path, safe="")),
]
HOSTS = [b"localhost", b"127.0.0.1:8000", b"evil.example", b"", b"/live", b"localhost/live?", b"[::1]", b"two", None]
WRONG = [
    *(None, b"", b"Bearer", b"Bearer ", b"bearer wrong", b"two", b"Basic two", b"Basic dHdvOnR3bw==", b"Bearer tw"),
    *(
        b"Bearer twoo",
        b"Bearer TWO",
        b"Bearer two two",
        b"Bearer two,two",
        b"Bearer two\0",
        b"Bearer\ttwo",
        b"Bearertwo",
    ),
    *(b"Bearer 'two'", b"Bearer *", b"Bearer null", b"Bearer \xff\xfe", b"Bearer two\xa0", b"Token two", b"Bearer=two"),
    *(b"Bearer two, Bearer two", b"Digest two", b"Bearer " + b"two" * 2000, b"Bearer correct-horse-battery-stapl"),
    b"Bearer tw\xc3\xb3",
]
ELSEWHERE_KEYS = [
    *(
        [],
        [(b"x-api-key", b"Bearer two")],
        [(b"x-api-key", b"two, two")],
        [(b"x-api-key", b"two")] * 2,
        [(b"x-api-key", b"")],
    ),
    *([(b"x-api-key", b"TWO")], [(b"api-key", b"two")], [(b"cookie", b"authorization=Bearer two")]),
    *([(b"proxy-authorization", b"Bearer two")], [(b"x-forwarded-for", b"127.0.0.1")], [(b"x-original-url", b"/live")]),
    *([(b"x-rewrite-url", b"/live")], [(b"x-http-method-override", b"GET")], [(b"forwarded", b"for=127.0.0.1;host=a")]),
    *([(b"authorization", b"Bearer two")], [(b"x-forwarded-prefix", b"/live")], [(b"sec-websocket-protocol", b"two")]),
]
QUERIES = [b"", b"api_key=two", b"key=two&path=/live", b"/live"]
VERSIONS = ["1.0", "1.1", "2", "0.9"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model_folder(tmp_path_factory.mktemp("models") / "tiny")


def answer(application: Application, scope: dict) -> tuple[int, bytes]:
    """(status, body); without a loop, as nothing is waited for before a key was shown."""
    sent: list[dict] = []

    async def receive() -> dict:
        return {"type": "http.request", "body": b'{"prompt": "x", "model": "tiny"}'}

    async def send(event: dict) -> None:
        sent.append(event)

    running = application(scope, receive, send)
    with pytest.raises(StopIteration):
        running.send(None)
    return sent[0]["status"], b"".join(event.get("body", b"") for event in sent)


def scopes(rng: random.Random, root_path: str) -> Iterator[dict]:
    """Requests as the HTTP server would hand them on. A right key never comes alone: it comes behind a wrong one."""
    while True:
        path = rng.choice(PATHS)
        if rng.random() < 0.95:
            path = rng.choice(BEFORE) + rng.choice(CHANGES)(path) + rng.choice(AFTER)
        path = urllib.parse.unquote(path) if rng.random() < 0.8 else path
        host, wrong, elsewhere = rng.choice(HOSTS), rng.choice(WRONG), rng.choice(ELSEWHERE_KEYS)
        if wrong is None and (b"authorization", b"Bearer two") in elsewhere:
            continue
        headers = [] if wrong is None else [(b"authorization", wrong)]
        headers += [*elsewhere, *([] if host is None else [(b"host", host)])]
        yield {
            "type": "http",
            "method": rng.choice(METHODS),
            "path": root_path + path,
            "raw_path": path.encode(),
            "root_path": root_path,
            "query_string": rng.choice(QUERIES),
            "headers": headers,
            "http_version": rng.choice(VERSIONS),
            "client": ("127.0.0.1", 1),
        }


@pytest.mark.parametrize(
    "count", [CI_COUNT, pytest.param(NIGHTLY_COUNT, marks=[pytest.mark.nightly, pytest.mark.timeout(0)])]
)
@pytest.mark.parametrize("root_path", ["", "/api"])
def test_no_spelling_of_a_request_passes_without_a_key(folder, root_path, count):
    server = Server(folder, options={"api_keys": KEYS, "root_path": root_path, "public_metrics": True})
    rng, seen = random.Random(count), dict[int, int]()
    for scope in itertools.islice(scopes(rng, root_path), count // 2):
        status, body = answer(server.app, scope)
        seen[status] = seen.get(status, 0) + 1
        if status == 401:
            continue
        context = f"{scope} got {status} {body!r}"
        if scope["path"].removeprefix(root_path) in PAGE:
            assert (status, scope["method"]) in ((200, "GET"), (200, "HEAD")), context
            continue
        assert scope["path"].removeprefix(root_path) in OPEN, context
        assert (status, body) == (200, b"") or status == 405, context
    assert not server.engine.requests
    assert set(seen) == {200, 401, 405}, "the probes were among them"
    print(f"{count // 2} requests: {seen}")


APP = b"https://app.example"
ORIGINS = [APP, APP.upper(), APP + b".evil", b"https://evil.example", b"null", b"*", b"", APP + b", " + APP, APP + b"/"]
ASKED = [b"POST", b"*", b"", b"GET, POST", b"a b", b"\xff"]


def test_no_preflight_opens_a_door(folder):
    """Of an allowed page it is answered without a key, and gives leave to nothing but to ask."""
    options = {"api_keys": KEYS, "allowed_origins": (APP.decode(),), "public_metrics": True}
    server, rng, seen = Server(folder, options=options), random.Random(7), dict[int, int]()
    for scope in itertools.islice(scopes(rng, ""), CI_COUNT // 4):
        origin, asked = rng.choice(ORIGINS), rng.choice([None, *ASKED])
        scope["method"] = rng.choice([scope["method"], "OPTIONS"])
        scope["headers"] += [(b"origin", origin)]
        scope["headers"] += [] if asked is None else [(b"access-control-request-method", asked)]
        status, body = answer(server.app, scope)
        seen[status] = seen.get(status, 0) + 1
        is_open = scope["path"] in OPEN | PAGE and (status in (200, 405))
        if status == 204:
            assert (scope["method"], origin.lower(), bool(asked)) == ("OPTIONS", APP, True), scope
        assert status in (204, 401, 403) or is_open, f"{scope} got {status}"
        assert not body or status != 204
    assert not server.engine.requests
    assert {204, 401, 403} <= set(seen)


@pytest.mark.parametrize("key", KEYS)
def test_the_right_key_is_accepted_for_the_same_requests(folder, key):
    """Or else the test above would pass on a server that refuses all."""
    server = Server(folder, options={"api_keys": KEYS})
    for path in ("/ready", "/v1/models", "/version", "/openapi.json", "/"):
        assert server.ask("GET", path, authorization=f"Bearer {key}").status_code == 200
        assert server.ask("GET", path, **{"x-api-key": key}).status_code == 200


def test_a_duplicate_key_is_refused(folder):
    server = Server(folder, options={"api_keys": KEYS})
    for first, second in ((b"Bearer two", b"Bearer wrong"), (b"Bearer wrong", b"Bearer two"), (b"Bearer two",) * 2):
        headers = [(b"host", b"localhost"), (b"authorization", first), (b"authorization", second)]
        scope = {"type": "http", "method": "GET", "path": "/v1/models", "headers": headers, "query_string": b""}
        assert answer(server.app, scope)[0] == 401


def test_the_routes_are_those_that_were_reviewed(folder):
    assert {(spec.method, spec.path) for spec in public_routes(ServerConfig())} == PUBLIC
    with_metrics = public_routes(ServerConfig(public_metrics=True))
    assert {(spec.method, spec.path) for spec in with_metrics} == PUBLIC | {("GET", "/metrics")}
    assert {(spec.method, spec.path) for spec in ADMIN_ROUTES} == OPERATORS
    document = Server(folder).ask("GET", "/openapi.json").json()["paths"]
    described = {
        (method.upper(), path) for path, entry in document.items() for method in entry if method != "parameters"
    }
    assert described >= PUBLIC - {("GET", "/"), ("GET", "/openapi.json")}
    assert not described & OPERATORS


@pytest.mark.parametrize("path", sorted({path for _, path in OPERATORS} | set(ELSEWHERE)))
def test_the_public_port_has_no_operator_route(folder, path):
    server = Server(folder)
    for method in ("GET", "POST", "PUT", "DELETE"):
        assert server.ask(method, path).status_code in (404, 501)


def test_websockets_are_not_answered_at_all(folder):
    sent = []

    async def send(event: dict) -> None:
        sent.append(event)

    asyncio.run(Server(folder).app({"type": "websocket", "path": "/v1/models", "headers": []}, None, send))
    assert not sent


def test_a_tenants_name_depends_on_a_secret_that_dumps_do_not_show():
    """Else the reader of a dump could try out keys."""
    server, headers = ServerConfig(api_keys=KEYS), {"authorization": "Bearer two"}
    names = [Guard(server, secret).check(headers).name for secret in ("a", "b", "a")]
    assert names[0] == names[2] != names[1]
