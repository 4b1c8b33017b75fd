"""Parses generated text into events, in pieces of any size, by running a format's table of states.

A call is reported as soon as its name is certain, and its arguments follow piece by piece. Until then its text is
held back; if it turns out not to be a call, it is content.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from .events import Event
from .readers.collector import Collector, Tools
from .readers.json_readers import JsonArgumentsReader, JsonCallReader
from .readers.marked_reader import MarkedArgumentsReader
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
    MarkedArguments,
    PythonCalls,
    Skip,
    State,
    Text,
    Value,
)
from .readers.tags import TagTokens
from .readers.text_readers import HeaderReader, SkipReader, TextReader

MAX_FAILURES = 64  # beginnings that turn out not to be calls; the text of each is read twice


class Reader(Protocol):
    """Reads text according to one state."""

    def read(self, text: str, at: int, final: bool) -> tuple[int, str | None]:
        """(where reading stops, the next state or None if more text is needed)."""
        ...


_TAG_READERS: Mapping[type[State], Callable[[Any, Collector, TagTokens], Reader]] = {
    Text: TextReader,
    Skip: SkipReader,
    Header: HeaderReader,
}
_READERS: Mapping[type[State], Callable[[Any, Collector], Reader]] = {
    JsonArguments: JsonArgumentsReader,
    MarkedArguments: MarkedArgumentsReader,
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
        self._tokens = TagTokens(form.tag_tokens)
        self._text, self._at = "", 0  # unread from `at` on
        self._num_failures = 0
        # The text read since a call may have begun, in pieces, and the length of the tag that began it.
        self._held: list[str] | None = []
        self._tag_len = 0
        self._name = self._held_in = CONTENT  # of the state, and of that in which the call may have begun
        content = form.states[CONTENT]
        self._openings = content.tags if isinstance(content, Text) and content.may_return else {}
        self._enter(form.start)

    @property
    def num_calls(self) -> int:
        """The number of calls that have begun."""
        return self._collector.num_calls

    @property
    def is_in_call(self) -> bool:
        """Whether the arguments of the last call have not ended; at the end of an output they were cut off."""
        return self._collector.is_in_call

    def push(self, text: str, final: bool = False, tag_ends: Collection[int] = ()) -> list[Event]:
        """The events of the next piece of text; set `final` with the last piece. `tag_ends`: where tags end that single
        tokens wrote, counted from the beginning of the output; known with their text at the latest."""
        self._tokens.add(tag_ends)
        self._tokens.start += self._at
        self._text, self._at = self._text[self._at :] + text, 0
        while (target := self._read(final)) is not None:
            if target == FAIL:
                self._fail()
            else:
                self._enter(target)
        if final:
            self._collector.end()
        return self._collector.take()

    def _read(self, final: bool) -> str | None:
        """The next state; None if more text is needed."""
        before, num_calls = self._at, self.num_calls
        self._at, target = self._reader.read(self._text, before, final)
        if self.num_calls > num_calls:
            self._held = None
        elif self._held is not None:
            self._held.append(self._text[before : self._at])
        elif isinstance(self._reader, TextReader | SkipReader) and self._reader.tag_at is not None:
            tag = self._text[self._reader.tag_at : self._at]
            if tag in self._openings:
                self._held, self._tag_len, self._held_in = [tag], len(tag), self._name
        return FAIL if final and target is None and self._held is not None else target

    def _fail(self) -> None:
        """Treat the text held back as content or as reasoning, and continue reading after its tag."""
        state = self._states[self._held_in]
        is_reasoning = isinstance(state, Text) and state.kind == "reasoning"
        if self._held is not None:
            held = "".join(self._held)
            self._tokens.start += self._at - len(held)
            self._text, self._at = held + self._text[self._at :], self._tag_len
            self._collector.end_call()
            add = self._collector.reasoning if is_reasoning else self._collector.content
            add(self._text[: self._at])
            self._num_failures += 1
        self._enter(self._held_in if is_reasoning else CONTENT)

    def _enter(self, name: str) -> None:
        state, self._name = self._states[name], name
        if isinstance(state, Text):
            self._held, self._held_in = None, CONTENT
            self._collector.end_call()
            if self._num_failures >= MAX_FAILURES:
                state = Text(state.kind, state.tags if state.calls else {})
        if (reader := _TAG_READERS.get(type(state))) is not None:
            self._reader = reader(state, self._collector, self._tokens)
        else:
            self._reader = _READERS[type(state)](state, self._collector)
