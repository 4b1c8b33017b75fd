"""Error texts for clients are written for them; the text of an unexpected exception stays in the log."""

import ast
import asyncio
import contextlib
import itertools
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from paged_serve.protocol import errors
from paged_serve.protocol.errors import EngineDead, PagedServeError, RequestFailed

from ..frontend.http_server import Server, make_model_folder

ROOT = Path(__file__).parent.parent.parent
SECRET = "/run/paged-serve/secret-0xdeadbeef"
C, H, T, D = "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"
M, R = "/v1/messages", "/v1/responses"
PROMPT = {"prompt": "abc", "max_tokens": 4}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
INPUT = {"input": "hi", "max_output_tokens": 4}
COUNTED = {"messages": CHAT["messages"]}

UNEXPECTED = [
    *(RuntimeError(SECRET), OSError(13, SECRET, SECRET), ValueError(SECRET), KeyError(SECRET), TypeError(SECRET)),
    *(MemoryError(SECRET), AssertionError(SECRET), TimeoutError(SECRET), RecursionError(SECRET), EOFError(SECRET)),
    *(msgspec.DecodeError(SECRET), msgspec.ValidationError(SECRET), StopIteration(SECRET)),
    UnicodeDecodeError("utf-8", SECRET.encode(), 0, 1, SECRET),
    *(PagedServeError(SECRET), EngineDead(SECRET), RequestFailed(SECRET), errors.ProtocolError(SECRET)),
    errors.ConfigError(SECRET),
]
# The function that fails: the requests that call it
SEAMS = {
    "app.router._service.tokenizer.encode": [(C, PROMPT), (H, CHAT), (M, CHAT), (R, INPUT), (T, {"prompt": "abc"})],
    "app.router._service.tokenizer.tokens_beyond": [(C, PROMPT), (H, CHAT), (T, {"prompt": "abc"})],
    "app.router._service.tokenizer.decode": [(C, PROMPT | {"echo": True}), (D, {"tokens": [70]})],
    "app.router._service.tokenizer.token_text": [(T, {"prompt": "abc", "return_token_strs": True})],
    "app.router._service.tokenizer.token_bytes": [(C, PROMPT | {"logprobs": 1}), (H, CHAT | {"logprobs": True})],
    "app.router._service.template.render": [
        (H, CHAT),
        (M, CHAT),
        (R, INPUT),
        (f"{M}/count_tokens", COUNTED),
        (f"{R}/input_tokens", INPUT),
        (T, {"messages": CHAT["messages"]}),
    ],
    "app.router._service.engine.submit": [(C, PROMPT), (H, CHAT), (M, CHAT), (C, PROMPT | {"prompt": ["a", "b"]})],
    "app.router._service.metrics.submitted": [(C, PROMPT), (H, CHAT)],
    "app.router._service.metrics.first_token": [(C, PROMPT), (H, CHAT)],
    "app.router._service.metrics.finished": [(C, PROMPT), (H, CHAT), (M, CHAT), (R, INPUT)],
    "app.router._service.answers.of_request": [(C, PROMPT), (H, CHAT)],
    "app.router._service.answers.begin": [(C, PROMPT), (H, CHAT), (M, CHAT), (R, INPUT)],
    "app.router._matcher": [("/v1/models", None), (C, PROMPT)],
    "app._guard.check": [("/v1/models", None), (C, PROMPT), ("/ready", None)],
    "app._engine_ready": [("/health", None), ("/ready", None)],
    "admission._stats": [(C, PROMPT), (H, CHAT)],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    return Server(make_model_folder(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(autouse=True)
def quiet():
    """The log is where the texts belong, and messages of a broken event loop are not examined."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def fails_with(error: BaseException):
    def fail(*arguments: object, **options: object) -> object:
        raise error

    return fail


@contextlib.contextmanager
def broken_at(server: Server, seam: str, error: BaseException) -> Iterator[None]:
    *owners, name = seam.split(".")
    owner: object = server
    for part in owners:
        owner = getattr(owner, part)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, fails_with(error), raising=True)
        yield


def exchange(server: Server, path: str, body: dict | None, **headers: str) -> list[dict]:
    """The messages that the application sends; a stream that breaks ends without an error text."""

    async def talk() -> list[dict]:
        sent: list[dict] = []
        given = iter([{"type": "http.request", "body": json.dumps(body).encode() if body else b""}])

        async def receive() -> dict:
            if (event := next(given, None)) is None:
                await asyncio.Event().wait()
            return event

        async def send(event: dict) -> None:
            sent.append(event)

        named = {"host": "localhost", "x-request-id": "id-of-mine"} | headers
        scope = {
            "type": "http",
            "method": "GET" if body is None else "POST",
            "path": path,
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
            "query_string": b"",
        }
        await server.app(scope, receive, send)
        return sent

    return asyncio.run(talk())


def check(sent: list[dict], context: str) -> None:
    assert SECRET not in repr(sent), context
    assert "Traceback" not in repr(sent), context
    status = sent[0]["status"]
    assert (b"x-request-id", b"id-of-mine") in sent[0]["headers"], context
    text = b"".join(event.get("body", b"") for event in sent).decode()
    if status == 500:
        error = json.loads(text)["error"]
        assert error["type"] in ("InternalServerError", "api_error"), context
        assert error.get("code", 500) == 500, context
        assert "id-of-mine" in error["message"], context
    else:  # a stream that had begun, or an answer that did not need the function
        assert status in (200, 400, 503), context


_numbers = itertools.count()


def variants(path: str, body: dict | None) -> Iterator[tuple[dict | None, dict[str, str]]]:
    """(body, headers): unchanged, as a stream, and both with a key."""
    yield body, {}
    if body is not None and path in (C, H, M):
        yield body | {"stream": True}, {}
        for stream in (False, True):
            yield body | {"stream": stream}, {"idempotency-key": f"key-{next(_numbers)}"}


@pytest.mark.parametrize("seam", SEAMS)
def test_no_exception_shows_its_text_wherever_it_is_raised(server, seam):
    for error in UNEXPECTED:
        for path, body in SEAMS[seam]:
            for variant, headers in variants(path, body):
                with broken_at(server, seam, error):
                    sent = exchange(server, path, variant, **headers)
                context = f"{seam}: {type(error).__name__} on {path} {variant} {headers}"
                check(sent, context)
                assert server.admission.num_active == 0, context


@pytest.mark.parametrize("error", UNEXPECTED, ids=lambda error: type(error).__name__)
def test_no_error_of_the_engine_shows_its_text_before_or_within_an_answer(server, monkeypatch, error):
    for path, body in ((C, PROMPT), (C, PROMPT | {"prompt": ["a", "b"]}), (H, CHAT), (M, CHAT)):
        for variant, headers in variants(path, body):
            with monkeypatch.context() as patch:
                patch.setattr(server.engine, "refusal", error)
                check(exchange(server, path, variant, **headers), f"{path} {variant} {error!r}")
        for variant, headers in variants(path, body):
            with monkeypatch.context() as patch:
                patch.setattr(server.engine, "fails_after", 2)  # the engine's own words then name a device
                assert "/dev" not in repr(exchange(server, path, variant, **headers))


# Texts of exceptions that are meant for clients: a JSON library's error about the client's body; the argument that a
# template passes to raise_exception; our own message with the sizes if a request is too large for a frame; the errors
# of the grammar library about the client's schema, expression or grammar.
MEANT = {
    *(f"structured_outputs/{name}.py" for name in ("lowering", "in_process", "structural_tag")),
    "http/openai/request/structured_outputs.py",
    "pooling/io_processors.py",  # a plugin's error about the client's own data
    "http/routes/messages.py",  # a chat's refusal, with its fields' names in the other interface
    *("offline/prompts.py", "adapters/lora_requests.py"),  # of the user's own program
    *("chat/session.py", "chat/commands.py", "cli/http_client.py"),  # of the user's own terminal
    "http/routes/adapters/routes.py",  # of the folder that the request names
    *("conversation/strict_json.py", "conversation/chat_template.py"),
    *("client/request_terms.py", "client/session/session.py"),
}
CLIENT_ERRORS = {"HttpError", "InvalidRequest", "Overloaded", "RequestExpired"}


def _of_ours(handler: ast.ExceptHandler) -> bool:
    """Its texts are written for clients; only the name of the field changes."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return all(isinstance(kind, ast.Name) and kind.id in CLIENT_ERRORS for kind in kinds)


def client_texts(path: Path):
    """Makers of error texts for clients, within handlers of exceptions whose name they use."""
    for handler in ast.walk(ast.parse(path.read_text())):
        if not isinstance(handler, ast.ExceptHandler) or handler.name is None or _of_ours(handler):
            continue
        for call in ast.walk(handler):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in CLIENT_ERRORS:
                names = [node for node in ast.walk(call) if isinstance(node, ast.Name) and node.id == handler.name]
                if names:
                    yield f"line {call.lineno}: {ast.unparse(call)}"


def test_no_source_puts_an_exceptions_text_into_an_answer():
    rooms = [ROOT / "frontend", ROOT / "engine_core", ROOT / "protocol"]
    found = {path: [*client_texts(path)] for room in rooms for path in sorted(room.rglob("*.py"))}
    telling = {path.relative_to(ROOT).as_posix().partition("/")[2]: lines for path, lines in found.items() if lines}
    assert set(telling) <= MEANT, telling
    assert telling, "the search finds what is there"
