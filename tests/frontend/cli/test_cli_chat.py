"""`chat` and `complete` against a small server that streams, refuses, or breaks off."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner

from paged_serve.frontend.cli import http_client
from paged_serve.frontend.cli.http_client import HttpClient
from paged_serve.frontend.cli.main import cli
from paged_serve.protocol.errors import ConfigError, EngineDead, InvalidRequest


class FakeServer(ThreadingHTTPServer):
    """Answers with `words`; keeps the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str | None, dict]] = []
        self.words = ["Good", " day", "."]
        self.refusal = ""
        self.breaks_after: list[int] = []  # words of each connection, then it ends; the last one sends them all
        self.numbers_events = True
        self.deleted: list[str] = []
        self.keys: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def do_GET(self) -> None:
        self._send(200, json.dumps({"data": [{"id": "small"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers["Authorization"], body))
        if self.server.refusal:
            self._send(400, json.dumps({"error": {"message": self.server.refusal}}))
            return
        field = (lambda word: {"delta": {"content": word}}) if "chat" in self.path else (lambda word: {"text": word})
        had = self.headers["Last-Event-ID"]
        self.server.keys.append((self.headers["Idempotency-Key"], had))
        events = [json.dumps({"choices": [field(word)]}) for word in self.server.words]
        named = [self._numbered(event, i) for i, event in enumerate([*events, "[DONE]"], 1)]
        begin = int(had.partition(":")[2]) if had else 0
        end = self.server.breaks_after.pop(0) if self.server.breaks_after else len(named)
        torn = named[end][:30] if end < len(named) else ""
        self._send(200, "".join(named[begin:end]) + torn)

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


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_complete_prints_the_continuation_as_it_comes(server):
    result = CliRunner().invoke(cli, ["complete", "--url", server.url, "-p", "Hello", "--temperature", "0"])
    assert result.stdout == "Good day.\n"
    [(path, _, body)] = server.asked
    assert path == "/v1/completions"
    assert body == {"model": "small", "prompt": "Hello", "max_tokens": 256, "temperature": 0.0, "stream": True}


def test_an_interrupted_answer_resumes_after_the_received_text(server):
    server.words, server.breaks_after = ["One", " two", " three", " four"], [0, 2, 3, 3]
    result = CliRunner().invoke(cli, ["complete", "--url", server.url, "-p", "Count"])
    assert result.stdout == "One two three four\n"
    [key] = {key for key, _ in server.keys}
    assert len(key) == 32
    assert [had for _, had in server.keys] == [None, None, "cmpl-a:2", "cmpl-a:3", "cmpl-a:3"]
    assert not server.deleted


def test_every_event_resets_the_count_of_retries(server, monkeypatch):
    monkeypatch.setattr(http_client, "FIRST_PAUSE_S", 0.0)
    server.words = [f" {i}" for i in range(2 * http_client.MAX_TRIES)]
    server.breaks_after = [*range(1, len(server.words))]
    result = CliRunner().invoke(cli, ["complete", "--url", server.url, "-p", "Count"])
    assert result.stdout == "".join(server.words) + "\n"


def test_retries_are_bounded(server, monkeypatch):
    monkeypatch.setattr(http_client, "FIRST_PAUSE_S", 0.0)
    server.breaks_after = [1] * (http_client.MAX_TRIES + 1)
    result = CliRunner().invoke(cli, ["complete", "--url", server.url, "-p", "Count"])
    assert isinstance(result.exception, EngineDead)
    assert len(server.keys) == http_client.MAX_TRIES + 1


def test_an_answer_without_event_ids_cannot_resume(server):
    server.numbers_events, server.breaks_after = False, [2]
    result = CliRunner().invoke(cli, ["complete", "--url", server.url, "-p", "Count"])
    assert result.stdout.startswith("Good day")
    assert isinstance(result.exception, EngineDead)
    assert len(server.keys) == 1


def test_closing_a_stream_deletes_it_at_the_server(server):
    events = HttpClient(server.url).stream("/v1/completions", {"prompt": "a"})
    next(events)
    events.close()
    assert server.deleted == ["/v1/streams/cmpl-a"]


@pytest.mark.parametrize("option", ["--url", "--base-url"])
@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_an_address_is_accepted_as_other_clients_write_it(server, option, path):
    done = CliRunner().invoke(cli, ["complete", option, server.url + path, "-p", "Count"])
    assert (done.exit_code, server.asked[0][0]) == (0, "/v1/completions")


def test_complete_reads_standard_input(server):
    CliRunner().invoke(cli, ["complete", "--url", server.url], input="from a pipe")
    assert server.asked[0][2]["prompt"] == "from a pipe"


def test_chat_keeps_the_conversation_and_clears_it(server):
    lines = "How do you do?\nAnd now?\n/clear\nWho?\n"
    result = CliRunner().invoke(cli, ["chat", "named", "--url", server.url, "--system", "Be brief."], input=lines)
    assert result.exit_code == 0
    assert result.stdout.count("Good day.") == 3
    system = {"role": "system", "content": "Be brief."}
    question = {"role": "user", "content": "How do you do?"}
    answer = {"role": "assistant", "content": "Good day."}
    assert [body["messages"] for _, _, body in server.asked] == [
        [system, question],
        [system, question, answer, {"role": "user", "content": "And now?"}],
        [system, {"role": "user", "content": "Who?"}],
    ]
    assert {body["model"] for _, _, body in server.asked} == {"named"}


def test_the_key_travels_as_a_bearer_token(server):
    CliRunner().invoke(cli, ["complete", "--url", server.url, "-p", "a"], env={"PAGED_SERVE_API_KEY": "secret"})
    assert server.asked[0][1] == "Bearer secret"


def test_a_refusal_ends_complete_but_not_a_chat(server):
    server.refusal = "prompt is too long"
    completed = CliRunner().invoke(cli, ["complete", "--url", server.url, "-p", "a"])
    assert isinstance(completed.exception, InvalidRequest)
    assert str(completed.exception) == "the server answers 400: prompt is too long"
    chatted = CliRunner().invoke(cli, ["chat", "--url", server.url], input="a\nb\n")
    assert chatted.exit_code == 0
    assert chatted.stderr.count("prompt is too long") == 2


def test_an_unreachable_server_and_an_invalid_address_give_different_errors(server):
    url = server.url
    server.server_close()
    assert isinstance(CliRunner().invoke(cli, ["complete", "--url", url, "-p", "a"]).exception, EngineDead)
    assert isinstance(CliRunner().invoke(cli, ["complete", "--url", "host:8000", "-p", "a"]).exception, ConfigError)
