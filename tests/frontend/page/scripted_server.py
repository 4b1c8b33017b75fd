"""A server with the page's files and answers written by a test, for streams that the demo model does not generate."""

import json
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from paged_serve.frontend.http.page import page_files

Answer = Iterable[dict[str, Any] | bytes] | tuple[int, str]  # chunks, or a status and a message


def content(text: str) -> dict[str, Any]:
    return delta(content=text)


def delta(finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "logprobs": None, "finish_reason": finish_reason}]}


def usage(completion_tokens: int) -> dict[str, Any]:
    counts = {"prompt_tokens": 3, "completion_tokens": completion_tokens, "total_tokens": 3 + completion_tokens}
    return {"choices": [], "usage": counts}


class Handler(BaseHTTPRequestHandler):
    script: "ScriptedServer"  # of its server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            models = {"data": [{"id": each} for each in self.script.models]}
            return self.whole(200, json.dumps(models).encode(), b"application/json")
        name = page_files.FILES_BY_PATH[self.path]
        path = page_files.FOLDER / name
        return self.whole(200, path.read_bytes(), page_files._TYPES[path.suffix], page_files._HEADERS)

    def whole(self, status: int, body: bytes, kind: bytes, headers=()) -> None:
        self.send_response(status)
        for key, value in ((b"content-type", kind), *headers):
            self.send_header(key.decode(), value.decode())
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.script.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        answer = self.script.answers.pop(0)
        if isinstance(answer, tuple):
            body = {"error": {"message": answer[1], "type": "x", "param": None, "code": answer[0]}}
            return self.whole(answer[0], json.dumps(body).encode(), b"application/json")
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        for chunk in answer:
            data = chunk if isinstance(chunk, bytes) else b"data: %s\n\n" % json.dumps(chunk).encode()
            try:
                self.wfile.write(data)
            except OSError:  # the page has aborted the request
                return None
        return None


class ScriptedServer:
    """`answers` are sent one after another; `bodies`: the received requests; `models`: the names of the models."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.bodies: list[dict[str, Any]] = []
        self.models = ["scripted"]
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("OfThisServer", (Handler,), {"script": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


DONE = b"data: [DONE]\n\n"
