"""`chat` and `complete` against a small server that streams, refuses, or breaks off."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from paged_serve.frontend.cli import http_client
from paged_serve.frontend.cli.http_client import HttpClient
from paged_serve.frontend.cli.main import cli
from paged_serve.protocol.errors import ConfigError, EngineDead, InvalidRequest

from ..fake_chat_server import FakeServer, fake_server

ROOT = Path(__file__).parents[3]


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as server:
        yield server


def test_complete_prints_the_continuation_as_it_arrives(server):
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


def test_an_answer_that_a_stop_of_the_server_cuts_off_resumes_at_its_successor(server):
    server.breaks_after, server.error = [1], {"message": "The server is shutting down", "code": 503}
    result = CliRunner().invoke(cli, ["complete", "--url", server.url, "-p", "Count"])
    assert result.stdout == "Good day.\n"
    assert [had for _, had in server.keys] == [None, "cmpl-a:1"]


def test_an_answer_that_fails_does_not_resume(server):
    server.breaks_after, server.error = [1], {"message": "The engine cannot compute it", "code": 500}
    result = CliRunner().invoke(cli, ["complete", "--url", server.url, "-p", "Count"])
    assert str(result.exception) == "The engine cannot compute it"
    assert len(server.keys) == 1


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
def test_an_address_is_accepted_in_the_form_of_other_clients(server, option, path):
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


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:abc",
        "http://127.0.0.1:99999",
        "http://[::1",
        "http://..:80",
        "http://:80",
        "http://a:b@c",
        "http://a/b c",
    ],
)
def test_an_address_that_cannot_be_one_is_refused(url):
    with pytest.raises(ConfigError, match="is not an address"):
        HttpClient(url)


@pytest.mark.parametrize("answer", ["<html></html>", "[]", '{"object": "list"}', '{"data": [{}]}', '{"data": []}'])
def test_a_server_of_another_kind_is_refused(server, answer):
    server.models = answer
    result = CliRunner().invoke(cli, ["chat", "--url", server.url])
    assert isinstance(result.exception, InvalidRequest)
    assert server.url in str(result.exception)


def test_the_path_of_a_unix_socket_may_have_any_character(tmp_path):
    path = str(tmp_path / "a#b?c d")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=lambda: listener.accept()[0].close(), daemon=True)
        thread.start()
        assert not HttpClient(f"unix:{path}").is_up("/ready")
        thread.join(60)
        assert not thread.is_alive()


def piped(*arguments: str, given: bytes, encoding: str = "utf-8") -> subprocess.CompletedProcess[bytes]:
    """A command with pipes, in a locale of the encoding."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": f"{encoding}:strict"}
    command = [sys.executable, "-m", "paged_serve", *arguments]
    return subprocess.run(command, input=given, capture_output=True, env=variables, timeout=60, check=False)


def test_text_that_is_not_utf_8_is_refused_and_the_chat_goes_on(server):
    done = piped("chat", "--url", server.url, given=b"caf\xe9\none\n")
    assert (done.returncode, done.stdout) == (0, b"> > Good day.\n> \n")
    assert b"[not sent: the text is not valid utf-8]" in done.stderr
    assert len(server.asked) == 1
    done = piped("complete", "--url", server.url, given=b"caf\xe9")
    assert (done.returncode, done.stderr) == (2, b"paged-serve: the prompt is not valid utf-8\n")


def test_characters_outside_the_locale_are_escaped(server):
    server.words = ["na\u00efve", " \U0001f680"]
    done = piped("chat", "--url", server.url, given=b"one\n", encoding="latin-1")
    assert (done.returncode, done.stdout) == (0, b"> na\xefve \\U0001f680\n> \n")


def test_a_closed_standard_input_is_an_empty_one(server):
    for command in ("chat", "complete"):
        shell = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "paged_serve", command, "--url", server.url]
        done = subprocess.run(
            shell, capture_output=True, timeout=60, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
