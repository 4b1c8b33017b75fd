"""`chat` and `complete` against a small server that streams, refuses, or breaks off."""

import socket
import threading
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from paged_serve.frontend.cli import http_client
from paged_serve.frontend.cli.http_client import HttpClient
from paged_serve.frontend.cli.main import cli
from paged_serve.protocol.errors import ConfigError, EngineDead, InvalidRequest

from ..fake_chat_server import FakeServer, fake_server


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
        thread.join(10)
        assert not thread.is_alive()
