"""The operator's routes of a real server with two frontends: on unix sockets and on a port of 127.0.0.1."""

import contextlib
import http.client
import json
import re
import time
import urllib.error
import urllib.request

import pytest
from click.testing import CliRunner

from paged_serve.frontend.cli.main import cli
from paged_serve.protocol.errors import InvalidRequest

from ..serving import Server


def ask(url: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method, headers=headers), timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def server(two_frontends: Server) -> Server:
    return two_frontends


@pytest.fixture
def admin(server):
    return re.search(r"admin +(http://127.0.0.1:\d+)", server.output())[1]


def num_answered(text: str) -> float:
    counts = re.findall(r'^paged:request_success_total{.*frontend="(\d)".*} (\S+)$', text, re.M)
    return sum(float(count) for _, count in counts)


def test_each_frontend_reports_the_metrics_of_all(server, admin):
    before = num_answered(server.metrics())
    for number in range(8):
        assert server.post("/v1/completions", {"prompt": f"{number}", "max_tokens": 2, "ignore_eos": True})[0] == 200
    for text in (server.metrics(), ask(f"{admin}/metrics")[1]):
        assert num_answered(text) - before == 8
        assert len(re.findall(r"^# TYPE paged:request_success_total", text, re.M)) == 1
        assert len(re.findall(r"^paged:num_requests_running{", text, re.M)) == 1
    assert server.get("/metrics")[0] == 404


def wait_until_idle(admin):
    """Streams that earlier tests broke may still run."""
    deadline = time.monotonic() + 60
    while json.loads(ask(f"{admin}/v1/requests")[1])["data"]:
        assert time.monotonic() < deadline, "ended requests are still listed"


def test_the_operator_can_inspect_the_engine_and_reset_its_cache(admin):
    wait_until_idle(admin)
    assert json.loads(ask(f"{admin}/stats")[1])["num_running"] == 0
    assert ask(f"{admin}/check", "POST") == (200, "{}")
    assert ask(f"{admin}/state")[0] == 200
    assert ask(f"{admin}/reset_prefix_cache", "POST") == (200, "{}")
    assert ask(f"{admin}/reset_prefix_cache")[0] == 405
    assert ask(f"{admin}/v1/models")[0] == 404


def test_the_operator_sees_the_requests_of_all_frontends(server, admin):
    """Twelve requests, so that both frontends get some; one has its own id."""
    wait_until_idle(admin)
    body = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with contextlib.ExitStack() as streams:
        for number in range(12):
            connection = streams.enter_context(contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port)))
            named = {"request_id": "mine"} if number == 7 else {}
            connection.request("POST", "/v1/completions", json.dumps({**body, **named}))
            assert connection.getresponse().readline().startswith(b"data: ")
        found = json.loads(ask(f"{admin}/v1/requests")[1])["data"]
        by_id = {each["id"]: each for each in found}
        assert {each["frontend"] for each in found} == {0, 1}
        assert by_id["mine"]["status"] == "running"
        assert by_id["mine"]["prompt_tokens"] > 0
        assert 0 < by_id["mine"]["output_tokens"] <= 400
        assert [each["age_s"] for each in found] == sorted((each["age_s"] for each in found), reverse=True)
    wait_until_idle(admin)


def test_the_operator_ends_a_request_of_any_frontend(server, admin):
    wait_until_idle(admin)
    body = json.dumps({"prompt": "Once", "max_tokens": 2000, "ignore_eos": True, "stream": True})
    with contextlib.ExitStack() as streams:
        answers = []
        for number in range(8):
            connection = streams.enter_context(contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port)))
            connection.request("POST", "/v1/completions", body, {"X-Request-Id": f"mine-{number}"})
            answers.append(connection.getresponse())
            assert answers[-1].readline().startswith(b"data: ")
        found = json.loads(ask(f"{admin}/v1/requests")[1])["data"]
        assert {each["frontend"] for each in found} == {0, 1}
        for each in found[1:]:
            status, text = ask(f"{admin}/v1/requests/{each['answer_id']}", "DELETE")
            assert (status, json.loads(text)["data"][0]["id"]) == (200, each["id"])
        rest = {each["id"]: answers[int(each["id"].removeprefix("mine-"))] for each in found}
        for each in found[1:]:
            *_, last, done, _ = rest[each["id"]].read().decode().split("\n\n")
            assert (json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"], done) == (
                *("abort", "data: [DONE]"),
            )
        assert [each["id"] for each in json.loads(ask(f"{admin}/v1/requests")[1])["data"]] == [found[0]["id"]]
        deadline = time.monotonic() + 60
        while json.loads(ask(f"{admin}/stats")[1])["num_running"] > 1:
            assert time.monotonic() < deadline, "aborted sequences still run"
        assert ask(f"{admin}/v1/requests/{found[1]['id']}", "DELETE")[0] == 404
        assert ask(f"{admin}/check", "POST") == (200, "{}")
    wait_until_idle(admin)


def test_the_command_line_lists_and_ends_requests(server, admin):
    wait_until_idle(admin)
    body = json.dumps({"prompt": "Once", "max_tokens": 2000, "ignore_eos": True})
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
        connection.request("POST", "/v1/completions", body, {"X-Request-Id": "to-be-ended"})
        while not json.loads(ask(f"{admin}/v1/requests")[1])["data"]:
            pass
        listed = CliRunner().invoke(cli, ["requests"])
        assert re.search(r"^to-be-ended +cmpl-to-be-ended +(waiting|running) ", listed.output, re.M)
        ended = CliRunner().invoke(cli, ["requests", "--abort", "to-be-ended"])
        assert (ended.exit_code, "to-be-ended" in ended.output) == (0, True)
        answer = json.load(connection.getresponse())
        assert answer["choices"][0]["finish_reason"] == "abort"
    refused = CliRunner().invoke(cli, ["requests", "--abort", "to-be-ended"])
    assert isinstance(refused.exception, InvalidRequest)


def test_no_web_page_reaches_it(admin):
    assert ask(f"{admin}/stats", Host="evil.example")[0] == 403
    assert ask(f"{admin}/reset_prefix_cache", "POST", Origin="http://evil.example")[0] == 403
