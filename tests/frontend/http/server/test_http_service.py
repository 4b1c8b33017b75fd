"""Probes, refusals with their status, and readers that disconnect."""

import asyncio
import contextlib
import json
import re

import msgspec
import pytest

from paged_serve.frontend.http.exchange.errors import http_error
from paged_serve.frontend.http.page.page_files import FILES_BY_PATH, FOLDER
from paged_serve.protocol.errors import (
    NO_TOKEN,
    NO_VECTOR,
    EngineDead,
    InvalidRequest,
    Overloaded,
    RequestExpired,
    RequestFailed,
)
from paged_serve.protocol.messages.sampling_params import FinishReason

from ...http_server import Server, joined


def test_models_version_and_health_are_served(folder):
    server = Server(folder, options={"port": 1})
    (model,) = server.ask("GET", "/v1/models").json()["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("tiny", "model", 64)
    assert server.ask("GET", "/v1/models/tiny").json() == model
    assert server.ask("GET", "/version").json()["version"]
    for path in ("/live", "/health", "/ping", "/ready"):
        assert server.ask("GET", path).status_code == 200
    server.engine.ready = False
    assert [server.ask("GET", path).status_code for path in ("/live", "/health", "/ready")] == [200, 503, 503]
    assert server.ask("GET", "/ping").status_code == 503


def test_no_cache_may_store_an_answer(folder):
    """A proxy's cache would show one key's answers to others, as it need not know X-Api-Key, and an old /health."""
    server = Server(folder)
    body = {"prompt": "a", "max_tokens": 1}
    asked = [("GET", "/health", None), ("GET", "/v1/models", None), ("GET", "/v1/models/other", None)]
    asked += [("POST", "/v1/completions", body), ("POST", "/v1/completions", {**body, "stream": True})]
    assert {server.ask(*each).headers["cache-control"] for each in asked} == {"no-store"}
    assert server.ask("GET", "/").headers["cache-control"] == "no-cache"  # the page's files are public


@pytest.mark.parametrize("later", ["other: {{ messages[0].content }}", "{% if", ""])
def test_a_frontend_that_is_replaced_has_the_chat_template_of_the_first(folder, tmp_path, later):
    file, run_dir = tmp_path / "mine.jinja", tmp_path / "run"
    run_dir.mkdir()
    file.write_text("mine: {{ messages[0].content }}")
    for _ in ("the first", "the one that replaces it"):
        server = Server(folder, options={"chat_template": str(file)}, run_dir=str(run_dir))
        answer = server.ask("POST", "/apply-template", {"messages": [{"role": "user", "content": "Hi"}]})
        assert answer.json() == {"prompt": "mine: Hi"}
        file.unlink(missing_ok=True)
        if later:
            file.write_text(later)


def test_load_counts_the_requests_in_progress(folder):
    server = Server(folder)
    assert server.ask("GET", "/load").json() == {"server_load": 0}
    with server.admission.entered(), server.admission.entered():
        assert server.ask("GET", "/load").json() == {"server_load": 2}


def test_before_the_model_is_loaded_only_liveness_is_answered(folder):
    server = Server(folder)
    server.app.router, server.engine.ready = None, False
    assert [server.ask("GET", path).status_code for path in ("/live", "/health", "/ready")] == [200, 503, 503]
    response = server.ask("POST", "/v1/completions", {"prompt": "x"})
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json()["error"]["type"] == "ServiceUnavailableError"


def test_request_ids_are_echoed_and_cleaned(folder):
    server = Server(folder)
    response = server.ask("POST", "/v1/completions", {"prompt": "x"}, **{"x-request-id": "abc-1"})
    assert (response.headers["x-request-id"], response.json()["id"]) == ("abc-1", "cmpl-abc-1")
    assert server.ask("GET", "/live", **{"x-request-id": "a\tb{}"}).headers["x-request-id"].isalnum()


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequest("too long", "prompt"), 400, "BadRequestError"),
        (Overloaded("full", 2.0), 429, "RateLimitError"),
        (Overloaded("drains", 2.0, draining=True), 503, "ServiceUnavailableError"),
        (EngineDead("socket /run/x failed"), 500, "InternalServerError"),
        (RequestExpired("timeout=1: it waited 1 s"), 504, "DeadlineExceededError"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_refusal_gets_its_status_even_in_a_stream(folder, error, status, kind, stream):
    server = Server(folder)
    server.engine.refusal = error
    for prompt in ("x", ["x", "y"]):
        response = server.ask("POST", "/v1/completions", {"prompt": prompt, "stream": stream})
        assert (response.status_code, response.json()["error"]["type"]) == (status, kind)
        assert "/run" not in response.text
        assert ("retry-after" in response.headers) == (status in (429, 503))
    assert server.admission.num_active == 0


@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("per_delta", [1, 2, 4])
def test_an_engine_error_in_a_stream_is_its_last_event_after_all_tokens(folder, per_delta, interval):
    server = Server(folder, "hello")
    server.engine.fails_after, server.engine.per_delta = 4, per_delta
    body = {"prompt": "x", "max_tokens": 60, "stream_interval": interval}
    chunks = server.stream("/v1/completions", body)
    assert joined(chunks[:-1]) == "hell"
    assert chunks[-1]["error"]["code"] == 500
    assert "/dev" not in json.dumps(chunks)
    response = server.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 60})
    assert response.status_code == 500
    assert response.headers["x-should-retry"] == "false", "a retry would fail again"
    assert "/dev" not in response.text


@pytest.mark.parametrize("why", [NO_TOKEN, NO_VECTOR])
def test_a_request_without_a_result_is_told_why(why):
    error = http_error(RequestFailed(why), "one")
    assert (error.status, error.message) == (
        500,
        f"The server cannot compute request one: {why}; sending it again will not help.",
    )


def test_a_request_that_is_itself_the_cause_of_its_failure_is_told_so():
    reason = "bad_words forbids every token that the request's other rules allow"
    error = http_error(RequestFailed(reason, "bad_words"), "one")
    assert (error.status, error.message, error.param) == (400, reason, "bad_words")


def test_draining_refuses_new_requests_and_signals_when_none_is_left(folder):
    server = Server(folder)
    assert "connection" not in server.ask("GET", "/ready").headers
    server.admission.draining = True
    response = server.ask("POST", "/v1/completions", {"prompt": "x"})
    assert response.headers["connection"] == "close"  # a request sent at the last moment would be lost
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    assert server.ask("GET", "/ready").status_code == 503
    assert server.ask("GET", "/health").status_code == 200
    assert server.admission.drained


def test_requests_beyond_the_engines_capacity_get_retry_after(folder):
    server = Server(folder)
    with contextlib.ExitStack() as held:
        for _ in range(8):
            held.enter_context(server.admission.entered())
        refused = server.ask("POST", "/v1/completions", {"prompt": "a"})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert server.ask("POST", "/v1/completions", {"prompt": "a"}).status_code == 200


def test_retry_after_is_never_less_than_predicted(folder):
    server = Server(folder)
    for seconds, whole, milliseconds in ((0.2, "1", "200"), (2.0, "2", "2000"), (2.1, "3", "2100")):
        server.engine.refusal = Overloaded("full", seconds)
        headers = server.ask("POST", "/v1/completions", {"prompt": "x"}).headers
        assert (headers["retry-after"], headers["retry-after-ms"]) == (whole, milliseconds)


def test_a_time_limit_comes_in_the_body_or_in_a_header(folder):
    server = Server(folder)
    ask = {"prompt": "x", "max_tokens": 1}
    assert server.ask("POST", "/v1/completions", ask, **{"x-request-timeout": "30"}).status_code == 200
    assert (
        server.ask("POST", "/v1/completions", {**ask, "timeout": 60}, **{"x-request-timeout": "30"}).status_code == 200
    )
    assert server.ask("POST", "/v1/completions", ask).status_code == 200
    header, body, none = (request.timeout_s for request in server.engine.requests)
    assert 0 < header <= 30 < body <= 60
    assert none == 0
    for wrong in ("0", "-1", "soon", "nan", "inf", "86401", ""):
        answer = server.ask("POST", "/v1/completions", ask, **{"x-request-timeout": wrong})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "timeout")
    for wrong in (0, -1, 86401, "1"):
        answer = server.ask("POST", "/v1/completions", {**ask, "timeout": wrong})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "timeout")


def test_an_expired_request_is_answered_with_x_should_retry_false(folder):
    server = Server(folder)
    server.engine.refusal = RequestExpired("timeout=1: it waited 1 s")
    answer = server.ask("POST", "/v1/completions", {"prompt": "x"})
    assert answer.headers["x-should-retry"] == "false"
    assert answer.json()["error"]["param"] == "timeout"
    assert 'reason="expired"} 1.0' in server.metrics()


def test_a_silent_stream_gets_comments_that_readers_skip(folder):
    server = Server(folder, options={"sse_keep_alive_interval_s": 0.02})
    server.engine.pause_s = 0.05
    body = {"prompt": "abc", "max_tokens": 60, "stream": True}
    text = server.ask("POST", "/v1/completions", body).text
    frames = text.split("\n\n")
    assert frames[0] == ": ping"  # also before the first token
    assert frames.count(": ping") >= 6
    assert frames[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(frame[6:]) for frame in frames if frame.startswith("data: {")]
    assert joined(chunks) == "hello"
    server.engine.pause_s = 0.0
    assert ": ping" not in server.ask("POST", "/v1/completions", body).text


def test_a_refusal_keeps_its_status_despite_pings(folder):
    server = Server(folder, options={"sse_keep_alive_interval_s": 0.01})
    server.engine.refusal = Overloaded("full", 3.0)
    assert server.ask("POST", "/v1/completions", {"prompt": "abc", "stream": True}).status_code == 429
    server.engine.pause_s = 0.05  # an error after the first ping is the stream's last event
    text = server.ask("POST", "/v1/completions", {"prompt": "abc", "stream": True}).text
    assert text.startswith(": ping\n\n")
    assert json.loads(text.split("\n\n")[-3][6:])["error"]["code"] == 429
    assert text.endswith("data: [DONE]\n\n")


def run_until_gone(server: Server, path: str, body: dict, events_before: int) -> list[dict]:
    """Send a request, read some events, disconnect; returns the messages that were sent."""

    async def talk() -> list[dict]:
        sent, gone, given = [], asyncio.Event(), []

        async def receive():
            if not given:
                given.append(1)
                return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)
            if len(sent) > events_before:
                gone.set()
                await asyncio.sleep(0.01)

        if not events_before:
            asyncio.get_running_loop().call_later(0.02, gone.set)
        headers = [(b"host", b"localhost")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
        await asyncio.wait_for(server.app(scope, receive, send), 60)
        return sent

    return asyncio.run(talk())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt", ["x", ["x", "y"]])
def test_a_client_that_leaves_frees_every_sequence(folder, stream, prompt):
    server = Server(folder, "x" * 10**5, ends=False)
    server.engine.limits = msgspec.structs.replace(server.engine.limits, max_model_len=10**7)
    body = {"prompt": prompt, "n": 2, "stream": stream, "max_tokens": 10**6}
    sent = run_until_gone(server, "/v1/completions", body, 3 if stream else 0)
    assert all((None, FinishReason.ABORT) in request.aborted for request in server.engine.requests)
    assert bool(sent) == stream
    assert server.admission.num_active == 0


def test_the_files_of_the_page_are_served_and_load_from_no_other_host(folder):
    server, served = Server(folder), set[str]()
    for path, name in FILES_BY_PATH.items():
        response = server.ask("GET", path)
        assert response.status_code == 200, path
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert not re.search(r"""(src|href|from|import)[=( ]*["'](https?:)?//""", response.text)
        assert "innerHTML" not in response.text
        served.add(name)
    assert server.ask("GET", "/").headers["content-type"] == "text/html; charset=utf-8"
    assert served == {path.name for path in FOLDER.iterdir()}
    assert server.ask("GET", "/page/page_files.py").status_code == 404
