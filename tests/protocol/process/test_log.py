"""One line per event, the same in every process."""

import fcntl
import json
import logging
import os
import re
import subprocess
import sys
import threading

import pytest

from paged_serve.protocol.process import log_writer
from paged_serve.protocol.process.log import configure_logging
from paged_serve.protocol.process.log_writer import StderrHandler


@pytest.fixture
def restored(monkeypatch):
    """The root logger is restored after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.delenv("PAGED_SERVE_LOG_FORMAT", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def written(restored, capfd):
    """Returns the text written to stderr."""

    def text() -> str:
        for handler in logging.getLogger().handlers:
            handler.flush()
        return capfd.readouterr().err

    return text


def test_a_line_has_date_time_level_process_and_message(written):
    configure_logging("engine-core", "info")
    logging.getLogger("paged_serve.anything").info("ready num_blocks=%d", 7)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} INFO    engine-core ready num_blocks=7\n", written())


def test_lines_below_the_level_are_not_written(written):
    configure_logging("worker-0", "warning")
    logging.getLogger("x").info("quiet")
    assert written() == ""


def test_a_message_can_neither_forge_a_line_nor_control_the_terminal(written):
    configure_logging("worker-0")
    logging.getLogger("x").info("%s", "a\n12:00:00.000 INFO fake\r\x1b[2Jé\t\x00")
    line = written()
    assert line.endswith(r"a\n12:00:00.000 INFO fake\x0d\x1b[2Jé\t\x00" + "\n")
    assert line.count("\n") == 1


def test_a_traceback_follows_its_line(written):
    configure_logging("worker-0")
    try:
        raise ValueError("wrong")
    except ValueError:
        logging.getLogger("x").exception("failed")
    lines = written().splitlines()
    assert lines[0].endswith("ERROR   worker-0 failed")
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: wrong"


def test_a_second_call_replaces_the_first(written):
    configure_logging("worker-0", "debug")
    configure_logging("worker-1", "info")
    logging.getLogger("x").debug("no")
    logging.getLogger("x").info("yes")
    line = written()
    assert line.count("\n") == 1
    assert "worker-1 yes" in line


def test_lines_are_json_on_request(written, monkeypatch):
    monkeypatch.setenv("PAGED_SERVE_LOG_FORMAT", "json")
    configure_logging("frontend-1")
    try:
        raise ValueError("wrong")
    except ValueError:
        logging.getLogger("paged_serve.x").exception("two\nlines")
    text = written()
    assert text.count("\n") == 1
    line = json.loads(text)
    assert line.pop("exception").endswith("ValueError: wrong")
    assert isinstance(line.pop("time"), float)
    expected = {"level": "error", "process": "frontend-1", "logger": "paged_serve.x", "message": "two\nlines"}
    assert line == expected


def pipe() -> tuple[int, int]:
    """A pipe that holds 4,096 bytes: (read end, write end)."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    return reading, writing


def test_a_process_whose_log_is_never_read_goes_on_and_ends():
    reading, writing = pipe()
    program = (
        "import logging; from paged_serve.protocol.process.log import configure_logging; configure_logging('x')\n"
        "for number in range(1000): logging.warning('a line that is never read %d', number)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stderr=writing)
    os.close(writing)
    try:
        assert process.wait(30) == 0
    finally:
        process.kill()
        os.close(reading)


@pytest.mark.parametrize("blocks", [True, False], ids=["pipe", "non-blocking pipe"])
def test_lines_that_wait_for_a_reader_are_written_in_order_and_those_dropped_are_counted(restored, monkeypatch, blocks):
    reading, writing = pipe()
    os.set_blocking(writing, blocks)
    monkeypatch.setattr(log_writer, "_STDERR", writing)
    monkeypatch.setattr(log_writer, "MAX_WAITING_BYTES", 10_000)
    full = os.write(writing, b"x" * 4095 + b"\n")
    configure_logging("worker-0")
    for number in range(500):
        logging.getLogger("x").info("line %d", number)
    text = b""
    while len(text) < full + 9_900:
        text += os.read(reading, 65536)
    logging.getLogger("x").info("last")
    while b"last\n" not in text:
        text += os.read(reading, 65536)
    _, *lines, dropped, last = text.decode().splitlines()
    assert [line.split("worker-0 ")[1] for line in (*lines, last)] == [
        *(f"line {number}" for number in range(len(lines))),
        "last",
    ]
    count = int(re.search(r"WARNING worker-0 (\d+) lines of this log were dropped here", dropped)[1])
    assert 0 < count == 500 - len(lines)
    os.close(reading)
    os.close(writing)


def test_a_log_whose_reader_is_gone_is_written_nowhere(restored, monkeypatch, capfd):
    reading, writing = pipe()
    os.close(reading)
    monkeypatch.setattr(log_writer, "_STDERR", writing)
    handler = configure_logging("worker-0")
    logging.getLogger("x").info("nowhere")
    handler.flush()
    logging.getLogger("x").info("again")
    handler.flush()
    assert capfd.readouterr().err == ""
    os.close(writing)


def test_a_process_that_can_start_no_thread_writes_its_lines_itself(restored, monkeypatch):
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    reading, writing = os.pipe()
    monkeypatch.setattr(log_writer, "_STDERR", writing)
    handler = StderrHandler()
    with monkeypatch.context() as no_threads:
        no_threads.setattr(threading.Thread, "start", start)
        handler.write("one")
        handler.write("two")
        assert os.read(reading, 100) == b"one\ntwo\n"
    handler.write("three")
    handler.flush()
    assert os.read(reading, 100) == b"three\n"
    os.close(reading)
    os.close(writing)


@pytest.mark.filterwarnings("ignore:.*multi-threaded")
def test_a_forked_child_writes_its_own_lines_and_none_of_its_parents(restored, monkeypatch):
    reading, writing = os.pipe()
    monkeypatch.setattr(log_writer, "_STDERR", writing)
    handler = StderrHandler()
    handler.write("parent")
    handler.flush()
    child = os.fork()
    if not child:
        handler.write("child")
        handler.flush()
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    assert os.read(reading, 100) == b"parent\nchild\n"
    os.close(reading)


@pytest.mark.parametrize(
    ("terminal", "no_color", "coloured"), [(True, "", True), (True, "1", False), (False, "", False)]
)
def test_only_terminals_get_colour(written, monkeypatch, terminal, no_color, coloured):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("NO_COLOR", no_color)
    configure_logging("worker-0")
    logging.getLogger("x").error("red")
    assert ("\033[31m" in written()) == coloured
