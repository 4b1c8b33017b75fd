"""Collects the events of readers, and drops white space around reasoning and before calls."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from ..events import Arguments, CallStart, Content, Event, Reasoning

Tools = Mapping[str, Mapping[str, Any]]  # parameters' JSON schemas, by name


class Collector:
    """Drops white space at both ends of reasoning and before calls."""

    def __init__(self, tools: Tools):
        self.tools = tools
        self.num_calls = 0
        self.is_in_call = False  # whether more of the last call's arguments is to come
        self._name = ""  # of the last call
        self._events: list[Event] = []
        self._content_space: list[str] = []  # white space after content; dropped if a call follows
        self._reasoning_space: list[str] = []
        self._reasoning_begun = False
        self.schema: Any = None  # of the last parameter, if its tool declares it
        self._num_parameters = 0  # of the last call
        self._ending = ""  # the text that completes the last call's JSON if no more of it follows

    def take(self) -> list[Event]:
        """The events since the last call of `take`."""
        events, self._events = self._events, []
        return joined(events) if len(events) > 1 else events

    def content(self, text: str) -> None:
        if text and not self._content_space and not text[-1].isspace():  # the common case
            self._events.append(Content(text))
            return
        if shown := text.rstrip():
            self._events.append(Content("".join([*self._content_space, shown])))
            self._content_space = []
        if space := text[len(shown) :]:
            self._content_space.append(space)

    def drop_space(self) -> None:
        """Drop the white space after the content."""
        self._content_space = []

    def reasoning(self, text: str) -> None:
        shown = text.rstrip()
        if shown and self._reasoning_begun:
            self._events.append(Reasoning("".join([*self._reasoning_space, shown])))
        elif shown:
            self._reasoning_begun = True
            self._events.append(Reasoning(shown.lstrip()))
        if shown:
            self._reasoning_space = []
        self._reasoning_space.append(text[len(shown) :])

    def end_reasoning(self) -> None:
        self._reasoning_begun, self._reasoning_space = False, []

    def end(self) -> None:
        """The output has ended."""
        if self._content_space:
            self._events.append(Content("".join(self._content_space)))
            self._content_space = []

    def start_call(self, name: str, call_id: str = "") -> None:
        self.end_call()
        self.end_reasoning()
        self.drop_space()
        self._name = name
        self._events.append(CallStart(self.num_calls, name, call_id))
        self.num_calls += 1
        self.is_in_call = True
        self._ending = "{}"

    def arguments(self, text: str) -> None:
        """Add a piece of the arguments' JSON."""
        if text:
            self._events.append(Arguments(self.num_calls - 1, text))
            self._ending = ""

    def start_parameter(self, name: str) -> None:
        """Begin one of the call's arguments, if they are written one by one."""
        is_first = self._ending == "{}"
        self.arguments(f"{'{' if is_first else ', '}{json.dumps(name, ensure_ascii=False)}: ")
        self._num_parameters = 1 if is_first else self._num_parameters + 1
        self.schema = self._declared().get(name)

    def value(self, text: str) -> None:
        """Add the last piece of a parameter's value."""
        self.arguments(text)
        self._ending = "}"

    def next_parameter(self) -> str:
        """The name of a positional argument."""
        declared = list(self._declared())
        number = 0 if self._ending == "{}" else self._num_parameters
        return str(declared[number]) if number < len(declared) else f"argument{number}"

    def end_call(self) -> None:
        """The arguments of the last call have ended."""
        self.arguments(self._ending)
        self.is_in_call = False

    @property
    def tool_schema(self) -> Any:
        """The schema of the last call's parameters; empty if its tool is unknown."""
        return self.tools.get(self._name, {})

    def _declared(self) -> Mapping[str, Any]:
        properties = self.tool_schema.get("properties")
        return properties if isinstance(properties, Mapping) else {}


def joined(events: Sequence[Event]) -> list[Event]:
    """Join consecutive events of one kind."""
    return [_one([*run]) for _, run in groupby(events, _kind)]


def _kind(event: Event) -> tuple[type[Event], int]:
    return type(event), event.index if isinstance(event, CallStart | Arguments) else 0


def _one(run: Sequence[Event]) -> Event:
    if len(run) == 1 or isinstance(run[0], CallStart):
        return run[0]
    return replace(run[0], text="".join(event.text for event in run if not isinstance(event, CallStart)))
