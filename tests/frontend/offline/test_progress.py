"""The progress bar of LLM.generate."""

import io
import sys

import pytest

from paged_serve.frontend.offline.outputs import CompletionOutput, RequestOutput
from paged_serve.frontend.offline.progress import ProgressBar

OUTPUT = RequestOutput("0", "a", [1, 2], outputs=[CompletionOutput(0, "b", [3, 4, 5])])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Bar:
    """A progress bar of the program."""

    def __init__(self, **given):
        self.given, self.num_done, self.is_closed = given, 0, False

    def update(self, count):
        self.num_done += count

    def close(self):
        self.is_closed = True


def drawn(monkeypatch, stream: io.StringIO, *, enabled: bool = True) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressBar(2, enabled) as bar:
        bar.done(OUTPUT)
        bar.done(OUTPUT)
    return stream.getvalue()


def test_a_terminal_shows_a_bar_and_keeps_the_last_line(monkeypatch):
    text = drawn(monkeypatch, Terminal())
    assert "0/2" in text
    last = text.rstrip("\n").rpartition("\r")[2]
    assert "2/2" in last
    assert " tok/s, out " in last


@pytest.mark.parametrize(("stream", "enabled"), [(io.StringIO(), True), (Terminal(), False)])
def test_only_a_terminal_shows_a_bar(monkeypatch, stream, enabled):
    assert drawn(monkeypatch, stream, enabled=enabled) == ""


def test_a_programs_own_bar_is_created_with_tqdms_arguments():
    made = []

    def make(**given):
        made.append(Bar(**given))
        return made[-1]

    with ProgressBar(2, make) as bar:
        bar.done(OUTPUT)
    assert (made[0].given["total"], made[0].num_done, made[0].is_closed) == (2, 1, True)
    assert "tok/s" in made[0].postfix
