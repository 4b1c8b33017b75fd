"""`run-batch`: OpenAI's batch files, with the built-in model and with a server that fails."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner

from paged_serve.frontend.cli import http_client
from paged_serve.frontend.cli.main import cli
from paged_serve.frontend.run_batch import batch_file
from paged_serve.frontend.run_batch.batch_file import ResultFile
from paged_serve.protocol.errors import ConfigError, EngineDead


class Busy(ThreadingHTTPServer):
    """Answers with the prompt; `statuses`: of the first answers; 0 breaks the connection."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses: list[int] = []
        self.pages: list[bytes] = []  # bodies of the first answers, with 502
        self.prompts: list[str] = []
        self.keys: list[str] = []
        self.num_active = self.most_active = 0
        self.lock = threading.Lock()
        self.headers: dict[str, str] = {}  # of answers that are not 200
        self.num_held = 0  # first requests that are answered only when `released`
        self.holding, self.released, self.answered = threading.Semaphore(0), threading.Event(), threading.Semaphore(0)


class Handler(BaseHTTPRequestHandler):
    server: Busy

    def do_GET(self) -> None:
        self.answer(200, {"data": [{"id": "small"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.num_active += 1
            self.server.most_active = max(self.server.most_active, self.server.num_active)
            self.server.prompts.append(body.get("prompt"))
            self.server.keys.append(self.headers["Idempotency-Key"])
            status = self.server.statuses.pop(0) if self.server.statuses else 200
            is_held = len(self.server.prompts) <= self.server.num_held
        if is_held:
            self.server.holding.release()
            self.server.released.wait(60)
        if self.server.pages:
            self.send(502, self.server.pages.pop(0))
        elif status:
            self.answer(status, {"text": body.get("prompt")})
        self.server.answered.release()
        with self.server.lock:
            self.server.num_active -= 1

    def answer(self, status: int, body: dict) -> None:
        self.send(status, json.dumps(body).encode())

    def send(self, status: int, text: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("X-Request-Id", "r")
        for name, value in self.server.headers.items() if status != 200 else ():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch) -> Iterator[Busy]:
    monkeypatch.setattr(http_client, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(http_client, "LONGEST_PAUSE_S", 0.001)
    with Busy() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def line(number: int, **fields: object) -> dict:
    body = {"prompt": f"p{number}"}
    return {"custom_id": f"c{number}", "method": "POST", "url": "/v1/completions", "body": body} | fields


def write(path, lines) -> None:
    path.write_text("".join(text if isinstance(text, str) else json.dumps(text) + "\n" for text in lines))


def run(server: Busy, folder, *options: str):
    url = f"http://127.0.0.1:{server.server_address[1]}"
    files = ["-i", str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl")]
    return CliRunner().invoke(cli, ["run-batch", *files, "--url", url, *options])


def results(folder) -> dict:
    found = [json.loads(text) for text in (folder / "out.jsonl").read_text().splitlines()]
    assert len({entry["custom_id"] for entry in found}) == len(found)
    return {entry["custom_id"]: entry for entry in found}


def test_every_request_is_answered_with_limited_concurrency(server, tmp_path):
    write(tmp_path / "in.jsonl", [*map(line, range(50)), "\n"])
    done = run(server, tmp_path, "--concurrency", "4")
    assert (done.exception, done.exit_code) == (None, 0)
    assert server.most_active <= 4
    found = results(tmp_path)
    for number in range(50):
        entry = found[f"c{number}"]
        assert entry["response"] == {"status_code": 200, "request_id": "r", "body": {"text": f"p{number}"}}
        assert entry["error"] is None
        assert entry["id"].startswith("batch_req_")
    assert "50 answered, 0 failed, 0 skipped" in done.stderr


def test_a_later_run_continues_after_a_torn_line(server, tmp_path):
    write(tmp_path / "in.jsonl", map(line, range(6)))
    run(server, tmp_path)
    lines = (tmp_path / "out.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "out.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:20])
    server.prompts.clear()
    done = run(server, tmp_path)
    assert (done.exit_code, len(server.prompts)) == (0, 3)
    assert set(results(tmp_path)) == {f"c{number}" for number in range(6)}
    assert "3 answered, 0 failed, 3 skipped" in done.stderr


def test_lines_that_are_not_requests_each_get_a_reason(server, tmp_path):
    wrong = [
        line(1, method="GET"),
        line(2, url="/v1/moderations"),
        line(3, body={"prompt": "a", "stream": True}),
        "no JSON\n",
        line(4),
        {"custom_id": "c5", "method": "POST", "url": "/v1/completions"},
        line(6, url="/v1/responses", body={"input": "a", "background": True}),
    ]
    write(tmp_path / "in.jsonl", wrong)
    assert run(server, tmp_path).exit_code == 1
    found = results(tmp_path)
    reasons = {name: entry["error"] and entry["error"]["message"] for name, entry in found.items()}
    assert "method is 'GET'" in reasons["c1"]
    assert "url is '/v1/moderations'" in reasons["c2"]
    assert "stream is true" in reasons["c3"]
    assert "line 4 is not a request" in reasons[None]
    assert "line 6 is not a request: Object missing required field `body`" in reasons["c5"]
    assert "background is true" in reasons["c6"]
    assert (reasons["c4"], server.prompts) == (None, ["p4"])


def test_a_later_run_refuses_no_line_again(server, tmp_path):
    nameless = {"method": "POST", "url": "/v1/completions", "body": {}}
    write(tmp_path / "in.jsonl", ["no JSON\n", nameless, line(1, url="/nowhere"), line(2)])
    run(server, tmp_path)
    before = (tmp_path / "out.jsonl").read_text()
    assert "0 answered, 0 failed, 4 skipped" in run(server, tmp_path).stderr
    assert (tmp_path / "out.jsonl").read_text() == before
    write(tmp_path / "in.jsonl", ["{}\n", nameless, line(3)])
    assert "1 answered, 1 failed, 1 skipped" in run(server, tmp_path).stderr, "the first line has another fault now"


def test_a_file_may_begin_with_a_byte_order_mark(server, tmp_path):
    write(tmp_path / "in.jsonl", ["\ufeff", line(1), line(2)])
    assert run(server, tmp_path).exit_code == 0
    assert set(results(tmp_path)) == {"c1", "c2"}


def test_an_empty_body_is_sent_as_it_is(server, tmp_path):
    write(tmp_path / "in.jsonl", [line(1, body={})])
    run(server, tmp_path)
    assert server.prompts == [None]


def test_a_line_that_is_too_long_is_refused_and_the_lines_after_it_are_answered(server, tmp_path, monkeypatch):
    monkeypatch.setattr(batch_file, "MAX_LINE_BYTES", 200)
    endings = [f"{'x' * size}\n" for size in (200, 201, 402, 1000)]  # the first ends where the limit is
    lines = [text for number, ending in enumerate(endings) for text in (line(number), ending)]
    write(tmp_path / "in.jsonl", [*lines, line(4), "x" * 500])
    assert run(server, tmp_path, "--concurrency", "1").exit_code == 1
    assert server.prompts == ["p0", "p1", "p2", "p3", "p4"]
    found = [json.loads(text) for text in (tmp_path / "out.jsonl").read_text().splitlines()]
    refusals = [entry["error"]["message"] for entry in found if entry["error"]]
    assert refusals == [f"line {number} has more than 200 bytes" for number in (2, 4, 6, 8, 10)]


def test_a_refusal_is_an_answer_and_the_run_fails(server, tmp_path):
    server.statuses = [400]
    write(tmp_path / "in.jsonl", [line(1)])
    assert run(server, tmp_path).exit_code == 1
    assert results(tmp_path)["c1"]["response"]["status_code"] == 400


def test_requests_to_a_busy_server_or_over_a_broken_connection_are_repeated_with_the_same_key(server, tmp_path):
    server.statuses = [503, 429, 0]
    write(tmp_path / "in.jsonl", [line(1)])
    assert run(server, tmp_path).exit_code == 0
    assert len(server.keys) == 4
    assert len(set(server.keys)) == 1


@pytest.mark.parametrize("name", ["Retry-After", "Retry-After-Ms"])
def test_a_server_that_says_when_it_is_free_is_asked_until_it_is(server, tmp_path, name):
    server.headers = {name: "0"}
    server.statuses = [429, 503] * http_client.MAX_TRIES
    write(tmp_path / "in.jsonl", [line(1)])
    assert run(server, tmp_path).exit_code == 0
    assert len(server.keys) == 2 * http_client.MAX_TRIES + 1
    assert results(tmp_path)["c1"]["response"]["status_code"] == 200


@pytest.mark.parametrize("value", [None, "Wed, 21 Oct 2026 07:28:00 GMT", "-1", "nan"])
def test_a_server_that_stays_busy_and_does_not_say_for_how_long_has_refused(server, tmp_path, value):
    server.headers = {} if value is None else {"Retry-After": value}
    server.statuses = [429] * 2 * http_client.MAX_TRIES
    write(tmp_path / "in.jsonl", [line(1)])
    assert run(server, tmp_path).exit_code == 1
    assert results(tmp_path)["c1"]["response"]["status_code"] == 429
    assert len(server.keys) == http_client.MAX_TRIES + 1


def test_a_server_that_is_gone_ends_the_run_without_a_result(server, tmp_path):
    server.statuses = [200, *[0] * 20]
    write(tmp_path / "in.jsonl", map(line, range(2)))
    assert isinstance(run(server, tmp_path, "--concurrency", "1").exception, EngineDead)
    assert set(results(tmp_path)) == {"c0"}


def test_a_file_of_another_kind_is_not_written_to(server, tmp_path):
    write(tmp_path / "in.jsonl", [line(1)])
    (tmp_path / "out.jsonl").write_text("precious\n")
    assert isinstance(run(server, tmp_path).exception, ConfigError)
    assert (tmp_path / "out.jsonl").read_text() == "precious\n"


def test_an_output_that_another_run_writes_is_refused_and_left_alone(server, tmp_path):
    write(tmp_path / "in.jsonl", [line(1)])
    other = ResultFile(str(tmp_path / "out.jsonl"))
    begun = b'{"id":"batch_req_'  # the other run is in the middle of a line
    (tmp_path / "out.jsonl").write_bytes(begun)
    refused = run(server, tmp_path).exception
    assert isinstance(refused, ConfigError)
    assert "another run is writing" in str(refused)
    assert ((tmp_path / "out.jsonl").read_bytes(), server.prompts) == (begun, [])
    other.close()
    assert run(server, tmp_path).exit_code == 0


@pytest.mark.parametrize("status", [200, 429])
def test_ctrl_c_does_not_wait_for_the_requests_in_flight(server, tmp_path, status):
    """They are being answered, or wait for as long as a busy server has asked."""
    server.num_held = 2
    server.statuses = [status] * 2
    server.headers = {"Retry-After": "50"}
    write(tmp_path / "in.jsonl", map(line, range(3)))
    url = f"http://127.0.0.1:{server.server_address[1]}"
    files = ["-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl")]
    command = [sys.executable, "-m", "paged_serve", "run-batch", *files, "--url", url]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert server.holding.acquire(timeout=60)
        assert server.holding.acquire(timeout=60)
        if status == 429:
            server.released.set()
            assert server.answered.acquire(timeout=60)
            assert server.answered.acquire(timeout=60)
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(60) == 1
        finally:
            server.released.set()
        assert b"Traceback" not in process.stderr.read()


def test_a_file_without_results_keeps_its_only_line(server, tmp_path):
    write(tmp_path / "in.jsonl", [line(1)])
    for text in ("precious", "\ufeff", '{"custom_id": "c1"}', json.dumps(line(1)) + "\n"):
        (tmp_path / "out.jsonl").write_text(text)
        assert isinstance(run(server, tmp_path).exception, ConfigError)
        assert (tmp_path / "out.jsonl").read_text() == text
    assert server.prompts == []


def test_an_output_that_is_no_plain_file_is_refused(server, tmp_path):
    write(tmp_path / "in.jsonl", [line(1)])
    (tmp_path / "out.jsonl").symlink_to("/dev/null")
    refused = run(server, tmp_path).exception
    assert isinstance(refused, ConfigError)
    assert "not a regular file" in str(refused)


def test_an_answer_that_is_not_json_is_kept_as_text_on_one_line(server, tmp_path):
    pages = [b"<html>\n<h1>502 Bad Gateway</h1>\n</html>\n", b'{\n "text": "x"\n}', b"", b"\xff"]
    server.pages = list(pages)
    write(tmp_path / "in.jsonl", map(line, range(4)))
    assert run(server, tmp_path, "--concurrency", "1").exit_code == 1
    found = results(tmp_path)
    assert [found[f"c{number}"]["response"]["body"] for number in range(4)] == [
        pages[0].decode(),
        {"text": "x"},
        "",
        "\ufffd",
    ]
    assert "0 answered, 0 failed, 4 skipped" in run(server, tmp_path).stderr


def test_a_custom_id_that_is_taken_is_refused(server, tmp_path):
    write(tmp_path / "in.jsonl", [line(1), line(2, custom_id="c1")])
    done = run(server, tmp_path)
    assert (done.exit_code, server.prompts) == (1, ["p1"])
    assert "line 2: custom_id is 'c1', as on an earlier line" in results(tmp_path)[None]["error"]["message"]


def test_the_built_in_model_answers_a_file(tmp_path):
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "temperature": 0}
    chat = line(1, url="/v1/chat/completions", body=body)
    text = line(2, body={"prompt": "The capital of France is", "max_tokens": 3})
    response = line(3, url="/v1/responses", body={"input": "hi", "max_output_tokens": 3, "temperature": 0})
    write(tmp_path / "in.jsonl", [chat, text, response])
    files = ["-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl")]
    command = [sys.executable, "-m", "paged_serve", "run-batch", *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = results(tmp_path)
    assert found["c1"]["response"]["body"]["choices"][0]["message"]["content"]
    assert found["c2"]["response"]["body"]["usage"]["completion_tokens"] == 3
    [message] = found["c3"]["response"]["body"]["output"]
    assert message["content"][0]["text"] == found["c1"]["response"]["body"]["choices"][0]["message"]["content"]
