"""The bar of LLM.generate."""

import io
import sys

import pytest

from paged_serve.frontend.offline import progress
from paged_serve.frontend.offline.outputs import CompletionOutput, RequestOutput
from paged_serve.frontend.offline.progress import ProgressBar

OUTPUT = RequestOutput("0", "a", [1, 2], outputs=[CompletionOutput(0, "b", [3, 4, 5])])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(monkeypatch, stream: io.StringIO, *, enabled: bool = True) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "DRAW_EVERY_S", 0.0)
    with ProgressBar(2, enabled) as bar:
        bar.done(OUTPUT)
        bar.done(OUTPUT)
    return stream.getvalue()


def test_a_terminal_sees_a_bar_and_keeps_the_last_line(monkeypatch):
    text = drawn(monkeypatch, Terminal())
    assert " 50% 1/2 prompts, in " in text
    assert text.count("\n") == 1
    assert text.rpartition("\033[K")[2].startswith("2/2 prompts, in ")


@pytest.mark.parametrize(("stream", "enabled"), [(io.StringIO(), True), (Terminal(), False)])
def test_only_a_terminal_sees_anything(monkeypatch, stream, enabled):
    assert drawn(monkeypatch, stream, enabled=enabled) == ""
