"""Generated text to events, in whatever pieces it comes: a table of states is the format, this runs it.

A call is an event as soon as its name is certain, and its arguments follow piece by piece. Until then its text is
held; if it turns out to be none, it is content.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from .events import Event
from .readers.collector import Collector, Tools
from .readers.json_readers import JsonArgumentsReader, JsonCallReader
from .readers.parameter_readers import KeyReader, ValueReader
from .readers.python_reader import PythonCallsReader
from .readers.states import (
    CONTENT,
    FAIL,
    Format,
    Header,
    JsonArguments,
    JsonCall,
    Key,
    PythonCalls,
    Skip,
    State,
    Text,
    Value,
)
from .readers.text_readers import HeaderReader, SkipReader, TextReader

MAX_FAILURES = 64  # beginnings of calls that are none: each has text read twice


class Reader(Protocol):
    """Reads text as one state says."""

    def read(self, text: str, at: int, final: bool) -> tuple[int, str | None]:
        """(how far it reads from `at`, the state that follows; None: it goes on when more text comes)."""
        ...


_READERS: Mapping[type[State], Callable[[Any, Collector], Reader]] = {
    Text: TextReader,
    Skip: SkipReader,
    Header: HeaderReader,
    JsonArguments: JsonArgumentsReader,
    JsonCall: JsonCallReader,
    PythonCalls: PythonCallsReader,
    Key: KeyReader,
    Value: ValueReader,
}


class OutputParser:
    """One sequence's text in, events out. Any division into pieces gives the same events once they are joined.

    `tools`: the parameters' schemas of the tools that the output may call, by name.
    """

    def __init__(self, form: Format, tools: Tools):
        self._states = form.states
        self._collector = Collector(tools)
        self._text = ""  # from where the reader stands, or from where a call may begin
        self._at = 0
        self._num_failures = 0
        # Where a call may begin, and where its text goes on behind its tag; None where none is open.
        self._begin: tuple[int, int] | None = (0, 0)
        self._enter(form.start)

    @property
    def num_calls(self) -> int:
        """That have begun."""
        return self._collector.num_calls

    def push(self, text: str, final: bool = False) -> list[Event]:
        """What the text adds; `final` with the last piece."""
        self._text += text
        while (target := self._read(final)) is not None:
            self._follow(target)
        read = self._at if self._begin is None else self._begin[0]
        self._text, self._at = self._text[read:], self._at - read
        if self._begin is not None:
            self._begin = (0, self._begin[1] - read)
        if final:
            self._collector.end()
        return self._collector.take()

    def _read(self, final: bool) -> str | None:
        """The next state; None: more text must come."""
        num_calls = self.num_calls
        self._at, target = self._reader.read(self._text, self._at, final)
        if self.num_calls > num_calls:
            self._begin = None
        return FAIL if final and target is None and self._begin is not None else target

    def _follow(self, target: str) -> None:
        if target != FAIL:
            if isinstance(self._reader, TextReader) and self._reader.tag_at is not None:
                self._begin = (self._reader.tag_at, self._at)
            self._enter(target)
            return
        if self._begin is not None:
            begin, self._at = self._begin
            self._collector.content(self._text[begin : self._at])
            self._num_failures += 1
        self._enter(CONTENT)

    def _enter(self, name: str) -> None:
        state = self._states[name]
        if isinstance(state, Text):
            self._begin = None
            self._collector.end_call()
            if self._num_failures >= MAX_FAILURES:
                state = Text(state.kind)
        self._reader = _READERS[type(state)](state, self._collector)
