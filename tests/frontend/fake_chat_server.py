"""A small HTTP server that streams, refuses, pauses or breaks off, for tests of the terminal commands."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeServer(ThreadingHTTPServer):
    """Answers with `words` and records the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.models = json.dumps({"data": [{"id": "small"}]})
        self.asked: list[tuple[str, str | None, dict]] = []
        self.words = ["Good", " day", "."]
        self.answers: list[list[dict]] = []  # deltas of the next chats; one may have a finish_reason
        self.holds_after: int | None = None  # pause after so many events of an answer, until `release`
        self._released = threading.Event()
        self.refusal = ""
        self.breaks_after: list[int] = []  # words after which each connection breaks; the next one sends all
        self.error: dict | None = None  # in an event before each break
        self.numbers_events = True
        self.deleted: list[str] = []
        self.keys: list[tuple[str, str | None]] = []

    def release(self) -> None:
        self._released.set()

    def deltas(self) -> list[dict]:
        return self.answers.pop(0) if self.answers else [{"content": word} for word in self.words]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def do_GET(self) -> None:
        self._send(200, self.server.models)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers["Authorization"], body))
        if self.server.refusal:
            self._send(400, json.dumps({"error": {"message": self.server.refusal}}))
            return
        had = self.headers["Last-Event-ID"]
        self.server.keys.append((self.headers["Idempotency-Key"], had))
        choices = [{"text": word} for word in self.server.words]
        if "chat" in self.path:
            deltas = map(dict, self.server.deltas())
            choices = [{"finish_reason": each.pop("finish_reason", None), "delta": each} for each in deltas]
        events = [json.dumps({"choices": [choice]}) for choice in choices]
        if "stream_options" in body:
            events.append(json.dumps({"choices": [], "usage": {"completion_tokens": 3}}))
        named = [self._numbered(event, i) for i, event in enumerate([*events, "[DONE]"], 1)]
        begin = int(had.partition(":")[2]) if had else 0
        end = self.server.breaks_after.pop(0) if self.server.breaks_after else len(named)
        torn = named[end][:30] if end < len(named) else ""
        if torn and self.server.error is not None:
            torn = f"data: {json.dumps({'error': self.server.error})}\n\ndata: [DONE]\n\n"
        if (held := self.server.holds_after) is not None:
            self._hold("".join(named[:held]), "".join(named[held:]))
            return
        self._send(200, "".join(named[begin:end]) + torn)

    def _hold(self, first: str, rest: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(first) + len(rest)))
        self.end_headers()
        self.wfile.write(first.encode())
        self.server._released.wait(60)
        with contextlib.suppress(OSError):  # the client may have disconnected
            self.wfile.write(rest.encode())

    def do_DELETE(self) -> None:
        self.server.deleted.append(self.path)
        self.send_response(204)
        self.end_headers()

    def _numbered(self, event: str, number: int) -> str:
        return (f"id: cmpl-a:{number}\n" if self.server.numbers_events else "") + f"data: {event}\n\n"

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def fake_server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
