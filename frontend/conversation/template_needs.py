"""Finds the shape of contents and arguments that a chat template expects, by rendering probes.

A template is written for one of several shapes and fails, or renders nonsense, with another. A content of parts is
passed unchanged to a template that reads parts, and as one text to others; the arguments of earlier calls are passed as
objects, or as JSON text to a template that joins them to other text. A later system message is passed unchanged to a
template that renders it; otherwise it becomes a part of a message that is rendered. A developer's message becomes a
system message, except for a template that renders the role in a way of its own.
"""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Globals of templates. No `lipsum` and no filter `random`: the same request has the same prompt.
GLOBALS = {"cycler", "dict", "joiner", "lipsum", "namespace", "raise_exception", "range", "strftime_now"}
PROBE = "PagedServeProbe"
_ASKS = {"role": "user", "content": PROBE}
_ANSWERS = {"role": "assistant", "content": "?"}
_FIRST = "PagedServeFirst"
_LATE_SYSTEM = [
    {"role": "system", "content": _FIRST},
    {"role": "user", "content": "?"},
    _ANSWERS,
    {"role": "system", "content": PROBE},
    {**_ASKS, "content": "?"},
]
_ID = "probe0123"  # nine letters and digits, as Mistral's templates demand
_WRITTEN = json.dumps({PROBE: 1})
# The content of a message with calls that was sent without one: templates differ in what they accept.
_FILLS: tuple[Mapping[str, Any], ...] = ({}, {"content": None}, {"content": ""})

Messages = Sequence[Mapping[str, Any]]
Attempt = Callable[[Messages], str]  # renders messages; "" when the template refuses or fails


@dataclass(frozen=True, slots=True)
class TemplateNeeds:
    takes_text: bool
    takes_parts: bool
    takes_late_system: bool
    takes_developer: bool
    written_arguments: bool
    fill: Mapping[str, Any]

    @classmethod
    def of(cls, attempt: Attempt) -> "TemplateNeeds":
        text, parts = attempt([_ASKS]), attempt([{**_ASKS, "content": [{"type": "text", "text": PROBE}]}])
        takes_text = PROBE in text
        return cls(
            takes_text=takes_text,
            takes_parts=PROBE in parts and (parts == text or not takes_text),
            takes_late_system=_takes_late_system(attempt),
            takes_developer=_takes_developer(attempt),
            **_needs_of_calls(attempt),
        )

    def adapted(self, messages: Messages) -> list[Mapping[str, Any]]:
        shown = messages if self.takes_developer else [_without_developer(message) for message in messages]
        shown = shown if self.takes_late_system else _with_system_first(shown)
        return [self._message(message) for message in shown]

    def _message(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        content, calls = message.get("content"), message.get("tool_calls")
        if isinstance(content, list) and not self.takes_parts:
            message = {**message, "content": "\n".join(part["text"] for part in content)}
        elif isinstance(content, str) and self.takes_parts and not self.takes_text:
            message = {**message, "content": [{"type": "text", "text": content}]}
        if calls:
            message = {**self.fill, **message, "tool_calls": [self._call(call) for call in calls]}
        return message

    def _call(self, call: Mapping[str, Any]) -> Mapping[str, Any]:
        arguments = call["function"]["arguments"]
        if isinstance(arguments, str) and not self.written_arguments:
            arguments = json.loads(arguments)
        elif isinstance(arguments, dict) and self.written_arguments:
            arguments = json.dumps(arguments, ensure_ascii=False)
        return {**call, "function": {**call["function"], "arguments": arguments}}


def _takes_late_system(attempt: Attempt) -> bool:
    late = attempt(_LATE_SYSTEM)
    return _FIRST in late and PROBE in late  # some templates render only the last system message


def _takes_developer(attempt: Attempt) -> bool:
    """Whether a developer's message is rendered unlike a system message, or else a system message is not rendered.

    A template that renders any role in the same way does not know the developer's.
    """
    system, developer, unknown = (
        attempt([{"role": role, "content": PROBE}, {**_ASKS, "content": "?"}])
        for role in ("system", "developer", "probe")
    )
    is_any_role = developer.replace("developer", "probe") == unknown
    return PROBE not in system or (PROBE in developer and developer != system and not is_any_role)


def _without_developer(message: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**message, "role": "system"} if message["role"] == "developer" else message


def _with_system_first(messages: Messages) -> Messages:
    """Join the first system messages. The texts of later ones go into the user's message after them, or else into the
    one before them, or else into a new one."""
    first = list(itertools.takewhile(_is_system, messages))
    shown = [{**first[0], "content": _joined([message.get("content") for message in first])}] if first else []
    waiting = list[Any]()
    for message in messages[len(first) :]:
        content = message.get("content")
        if _is_system(message):
            waiting.append(content)
        elif message["role"] == "user":
            shown.append({**message, "content": _joined([*waiting, content])} if waiting else dict(message))
            waiting.clear()
        else:
            _add_as_users(shown, waiting)
            shown.append(dict(message))
    _add_as_users(shown, waiting)
    return shown


def _is_system(message: Mapping[str, Any]) -> bool:
    return bool(message["role"] == "system")


def _add_as_users(shown: list[dict[str, Any]], waiting: list[Any]) -> None:
    if not waiting:
        return
    if shown and shown[-1]["role"] == "user":
        shown[-1]["content"] = _joined([shown[-1].get("content"), *waiting])
    else:
        shown.append({"role": "user", "content": _joined(waiting)})
    waiting.clear()


def _joined(contents: Sequence[Any]) -> Any:
    """The contents as one text, or as parts if one of them has parts."""
    if all(isinstance(content, str) for content in contents):
        return "\n".join(contents)
    parts = [[{"type": "text", "text": content}] if isinstance(content, str) else content or [] for content in contents]
    return [part for some in parts for part in some]


def _needs_of_calls(attempt: Attempt) -> dict[str, Any]:
    """The shape of calls. Objects are preferred: models were trained on the JSON that templates write of them."""
    for fill in _FILLS:
        from_object, from_text = _of_call(attempt, fill, {PROBE: 1}), _of_call(attempt, fill, _WRITTEN)
        printed_by_python = repr({PROBE: 1}) in from_object
        if PROBE in from_object and not (printed_by_python and _WRITTEN in from_text):
            return {"written_arguments": False, "fill": fill}
        if PROBE in from_text:
            return {"written_arguments": True, "fill": fill}
    fills = (fill for fill in _FILLS if _of_call(attempt, fill, {PROBE: 1}))  # for a template that omits arguments
    return {"written_arguments": False, "fill": next(fills, {})}


def _of_call(attempt: Attempt, fill: Mapping[str, Any], arguments: object) -> str:
    call = {"id": _ID, "type": "function", "function": {"name": "probe", "arguments": arguments}}
    result = {"role": "tool", "name": "probe", "tool_call_id": _ID, "content": "?"}
    return attempt([{"role": "user", "content": "?"}, {"role": "assistant", **fill, "tool_calls": [call]}, result])
