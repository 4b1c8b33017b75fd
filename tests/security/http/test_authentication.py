"""Every way to spell a request to a server with keys: none but the probes is answered without one."""

import asyncio
import itertools
import os
import random

import pytest

from paged_serve.frontend.http.exchange.auth import Guard
from paged_serve.frontend.http.page.page_files import FILES_BY_PATH
from paged_serve.frontend.http.routes.operator.routes import ADMIN_ROUTES
from paged_serve.frontend.http.routes.table import public_routes
from paged_serve.frontend.http.server.app import Application
from paged_serve.protocol.messages.config import ServerConfig

from ...frontend.http_server import Server, make_model_folder
from .unauthenticated_requests import ELSEWHERE, OPEN, OPERATORS, PUBLIC, scopes

KEYS = ("correct-horse-battery-staple", "two")
CI_COUNT = 10_000
NIGHTLY_COUNT = int(os.environ.get("PAGED_SERVE_TEST_REQUEST_COUNT", 1_000_000))
PAGE = set(FILES_BY_PATH)  # static files that ask for the key


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


def test_no_preflight_stands_in_for_a_key(folder):
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
