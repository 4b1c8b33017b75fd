"""Requests to a server with keys in every spelling: paths, methods, hosts and wrong keys."""

import random
import urllib.parse
from collections.abc import Iterator

OPEN = {"/live", "/health", "/ping"}
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
    ("POST", "/v1/responses/input_tokens"),
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
    ("GET", "/docs"),
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
    ("DELETE", "/v1/requests/{id}"),
    ("POST", "/abort_requests"),
    ("POST", "/abort_requests/own"),
    ("GET", "/server_info"),
}
ELSEWHERE = (
    "/pause",
    "/collective_rpc",
    "/update_weights",
    "/redoc",
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
