"""One line per event, the same in every process."""

import json
import logging
import re
import sys

import pytest

from paged_serve.protocol.process.log import configure_logging


@pytest.fixture
def written(monkeypatch, capsys):
    """Returns the text written to stderr; the root logger is restored."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.delenv("PAGED_SERVE_LOG_FORMAT", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    yield lambda: capsys.readouterr().err
    root.handlers[:] = handlers
    root.setLevel(level)


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


@pytest.mark.parametrize(
    ("terminal", "no_color", "coloured"), [(True, "", True), (True, "1", False), (False, "", False)]
)
def test_only_terminals_get_colour(written, monkeypatch, terminal, no_color, coloured):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("NO_COLOR", no_color)
    configure_logging("worker-0")
    logging.getLogger("x").error("red")
    assert ("\033[31m" in written()) == coloured
