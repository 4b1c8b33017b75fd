"""`paged-serve chat` beyond a question and its answer: tools, reasoning, commands, several lines, an interruption."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from paged_serve.frontend.chat.reader import Reader, history_file
from paged_serve.frontend.cli.main import cli

from ..fake_chat_server import FakeServer, fake_server

TOOL = {"name": "add", "description": "adds", "parameters": {"type": "object"}}
CALL = [
    {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "add", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": " 2}"}}]},
]


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as server:
        yield server


def chat(server: FakeServer, *lines: str, options: tuple[str, ...] = ()) -> Result:
    done = CliRunner().invoke(cli, ["chat", "--url", server.url, *options], input="\n".join(lines) + "\n")
    assert done.exit_code == 0, done.output
    return done


def messages(server: FakeServer) -> list[list[dict]]:
    return [body["messages"] for _, _, body in server.asked]


def test_a_call_is_shown_and_its_result_is_typed(server, tmp_path):
    (tmp_path / "tools.json").write_text(json.dumps([TOOL]))
    server.answers = [CALL, [{"content": "It is 4."}]]
    done = chat(server, "2 + 2?", "4", "thanks", options=("--tools", str(tmp_path / "tools.json")))
    assert 'add {"a": 2}\nresult of add> It is 4.\n' in done.stdout
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    assert messages(server)[2] == [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
        {"role": "assistant", "content": "It is 4."},
        {"role": "user", "content": "thanks"},
    ]
    assert server.asked[0][2]["tools"] == [{"type": "function", "function": TOOL}]


def test_a_call_of_a_custom_tool_is_shown_and_its_result_is_typed(server, tmp_path):
    tool = {"type": "custom", "custom": {"name": "shell"}}
    (tmp_path / "tools.json").write_text(json.dumps([tool]))
    call = {"index": 0, "id": "c1", "type": "custom", "custom": {"name": "shell", "input": ""}}
    server.answers = [
        [
            {"tool_calls": [call]},
            {"tool_calls": [{"index": 0, "custom": {"input": "ls -"}}]},
            {"tool_calls": [{"index": 0, "custom": {"input": "l"}}]},
        ],
        [{"content": "One file."}],
    ]
    done = chat(server, "list", "a.txt", "/show", options=("--tools", str(tmp_path / "tools.json")))
    assert "shell ls -l\nresult of shell> One file.\n" in done.stdout
    assert "assistant: \n  shell ls -l\ntool: a.txt\n" in done.stdout
    assert messages(server)[1][1:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "custom", "custom": {"name": "shell", "input": "ls -l"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
    ]


def test_a_call_without_a_result_leaves_no_trace(server):
    server.answers = [CALL]
    done = CliRunner().invoke(cli, ["chat", "--url", server.url], input="2 + 2?\n")
    assert done.exit_code == 0
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("reason", "says"),
    [("length", "cut off at the longest answer"), ("abort", "the server's operator ended it")],
)
def test_a_call_that_is_cut_off_needs_no_result(server, reason, says):
    server.answers = [[{"content": "Let me see. "}, *CALL[:2], {"finish_reason": reason}]]
    done = chat(server, "2 + 2?", "thanks")
    assert "result of add" not in done.stdout
    assert f"[{says}" in done.stderr
    assert messages(server)[1][1] == {"role": "assistant", "content": "Let me see. "}


def test_reasoning_is_shown_separately_and_sent_back(server):
    thinks = [{"reasoning_content": "Hm. "}, {"content": "Yes."}]
    server.answers = [thinks, thinks, thinks]
    done = chat(server, "a", "/reasoning off", "b", "/reasoning", "c")
    assert "> Hm. \nYes.\n> off\n> Yes.\n> on\n> Hm. \nYes.\n" in done.stdout
    assert messages(server)[1][1] == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm. "}


def test_a_question_is_undone_or_answered_again(server):
    chat(server, "one", "two", "/undo", "three", "/retry", "/undo", "/undo", "/undo")
    contents = [[message["content"] for message in asked] for asked in messages(server)]
    assert contents == [
        ["one"],
        ["one", "Good day.", "two"],
        ["one", "Good day.", "three"],
        ["one", "Good day.", "three"],
    ]
    assert "seed" not in server.asked[2][2]
    assert server.asked[3][2]["seed"] >= 0


def test_fields_are_set_and_the_chats_own_are_refused(server):
    lines = (
        "/set temperature 0.5",
        '/set stop ["x"]',
        "/set reasoning_effort low",
        "a",
        "/set stop",
        "/set seed 7",
        "b",
    )
    done = chat(server, *lines, "/retry", "/set messages []", "/set n 2")
    fields = [
        {name: body[name] for name in body if name not in ("messages", "model", "stream")} for *_, body in server.asked
    ]
    usage = {"stream_options": {"include_usage": True}}
    assert fields[0] == {"temperature": 0.5, "stop": ["x"], "reasoning_effort": "low", **usage}
    assert fields[1] == fields[2] == {"temperature": 0.5, "reasoning_effort": "low", "seed": 7, **usage}
    assert done.stderr.count("is the chat's own") == 2


def test_a_conversation_is_saved_and_continued(server, tmp_path):
    path = str(tmp_path / "talk.json")
    chat(server, "/system Be brief.", "/set temperature 0", "one", f"/save {path}")
    saved = json.loads((tmp_path / "talk.json").read_text())
    assert (saved["model"], saved["temperature"], len(saved["messages"])) == ("small", 0, 3)
    chat(server, "two", options=("--load", path))
    assert server.asked[1][2] == {
        **saved,
        "messages": [*saved["messages"], {"role": "user", "content": "two"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    (tmp_path / "no.json").write_text('{"messages": 3}')
    refused = chat(server, f"/load {tmp_path / 'no.json'}", "/load /nowhere.json", "/load", "/show")
    for words in ("holds no conversation", "cannot be read", "name a file"):
        assert words in refused.stderr
    assert "no messages yet" in refused.stdout


def test_a_loaded_conversation_may_have_parts_and_nulls(server, tmp_path):
    parts = [{"type": "text", "text": "one"}]
    talk = [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "Good day.", "tool_calls": None},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"type": "custom", "custom": {"name": "f", "input": "x"}}],
        },
    ]
    (tmp_path / "talk.json").write_text(json.dumps({"messages": talk, "tools": None}))
    done = chat(server, "/show", "/retry", "/undo", "/undo", options=("--load", str(tmp_path / "talk.json")))
    assert 'user: [{"type": "text", "text": "one"}]\nassistant: Good day.\nassistant: ' in done.stdout
    assert messages(server) == [talk[:2]]
    assert 'taken back: [{"type": "text", "text": "one"}]' in done.stdout


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [], "tools": {"type": "function"}},
        {"messages": [], "tools": ["f"]},
        {"messages": [{"role": "assistant", "content": "", "tool_calls": ["f"]}]},
        {"messages": [{"role": "assistant", "content": "", "tool_calls": "f"}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f"}}]}]},
        {"messages": [{"role": "user", "content": 3}]},
    ],
)
def test_a_file_that_is_no_conversation_is_refused_and_changes_nothing(server, tmp_path, body):
    (tmp_path / "talk.json").write_text(json.dumps(body))
    done = chat(server, "one", f"/load {tmp_path / 'talk.json'}", "/show", "two")
    assert "holds no conversation" in done.stderr
    assert [message["content"] for message in messages(server)[1]] == ["one", "Good day.", "two"]


def test_tools_that_are_no_functions_are_refused(server, tmp_path):
    (tmp_path / "tools.json").write_text('[{"type": "function", "function": "f"}]')
    assert "holds no list of tools" in chat(server, f"/tools {tmp_path / 'tools.json'}").stderr


def test_a_path_that_cannot_be_written_is_refused(server, tmp_path):
    done = chat(server, "one", "/save ~unknown-user/x", "/save a\0b", "/load ~unknown-user/x", "/show")
    assert done.stderr.count("~unknown-user") == 2
    assert "user: one" in done.stdout


def test_a_retry_that_fails_leaves_the_conversation(server):
    server.answers = [[{"content": "first"}], [], [{"content": "last"}]]
    chat(server, "one", "/retry", "two")
    assert [message["content"] for message in messages(server)[2]] == ["one", "first", "two"]


def test_the_server_is_asked_for_its_models(server):
    done = chat(server, "/model", "/model other", "/model small")
    assert done.stdout.count("* small") == 2
    assert "the server has small, and no other" in done.stderr


def test_an_unknown_command_is_refused_with_the_nearest(server):
    done = chat(server, "/sistem x", "//help", "/help")
    assert "did you mean /system?" in done.stderr
    assert [body[-1]["content"] for body in messages(server)] == ["/help"]
    for name in ("/retry", "/tools [FILE|off]", "/save FILE"):
        assert name in done.stdout


def test_figures_are_shown_on_request(server):
    server.answers = [[{"content": "a"}], [{"content": "b"}]]
    done = chat(server, "one", "/stats", "two", options=("--stats",))
    assert len(re.findall(r"\[3 tokens, [\d.]+ tok/s, first token after [\d.]+ s, [\d.]+ s\]", done.stderr)) == 1
    assert "> off\n" in done.stdout


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["one"], "one"),
        (['"""one', "two", 'three"""'], "one\ntwo\nthree"),
        (['"""', "  one", "", 'two"', '"""'], '  one\n\ntwo"'),
        (['"""one"""'], "one"),
        (['"""one'], None),
        ([], None),
    ],
)
def test_several_lines_are_entered_between_triple_quotes(lines, text):
    given = iter(lines)

    def read_line(_: str) -> str:
        try:
            return next(given)
        except StopIteration:
            raise EOFError from None

    assert Reader(read_line).read() == text


class Terminal:
    """A chat on a pseudo-terminal."""

    def __init__(self, server: FakeServer, home: str):
        self._master, slave = pty.openpty()
        command = [sys.executable, "-m", "paged_serve", "chat", "--url", server.url]
        environment = {**os.environ, "XDG_STATE_HOME": home, "TERM": "xterm"}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self.seen = ""

    def write(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, words: str, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while words not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self._master, 65536).decode()
                except OSError:  # the other end is closed
                    break
        assert words in self.seen, self.seen
        self.seen = self.seen.partition(words)[2]

    def end(self) -> int:
        self.write("\x04")
        status = self.process.wait(60)
        os.close(self._master)
        return status


def test_a_terminal_has_history_and_ctrl_c_ends_an_answer(server, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    terminal = Terminal(server, str(tmp_path))
    terminal.wait_for("> ")
    terminal.write("/set temperature 1\n")
    terminal.wait_for("temperature 1")
    server.holds_after = 2  # deltas of an answer
    terminal.write("first question\n")
    terminal.wait_for("Good day")
    terminal.process.send_signal(signal.SIGINT)
    terminal.wait_for("> ")
    server.release()
    server.holds_after = None
    terminal.write("second question\n")
    terminal.wait_for("Good day.")
    terminal.wait_for("> ")
    assert terminal.end() == 0
    assert [message["content"] for message in messages(server)[1]] == ["first question", "Good day", "second question"]
    assert history_file().read_text().splitlines()[-3:] == ["/set temperature 1", "first question", "second question"]
    assert history_file().stat().st_mode & 0o777 == 0o600
    terminal = Terminal(server, str(tmp_path))
    terminal.wait_for("> ")
    terminal.write("\x1b[A\n")  # the arrow key
    terminal.wait_for("second question")
    terminal.wait_for("Good day.")
    terminal.write("/ret\t")
    terminal.wait_for("/retry")
    assert terminal.process.poll() is None
    terminal.process.kill()
    terminal.process.wait()
