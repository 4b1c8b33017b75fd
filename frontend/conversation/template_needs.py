"""In which shape a chat template reads contents and arguments: found by what it makes of a probe, not by its source.

Templates are written for one of several shapes, and fail or print nonsense for another. A content of parts goes as it
is to a template that reads parts, and as one text to any other; earlier calls' arguments go as objects, or as the text
of one where a template joins them to other text.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PROBE = "PagedServeProbe"
_ASKS = {"role": "user", "content": PROBE}
_ID = "probe0123"  # nine letters and digits, as Mistral's templates demand
_WRITTEN = json.dumps({PROBE: 1})
# What a message with calls has for a content where its sender gave none: templates differ in which they take.
_FILLS: tuple[Mapping[str, Any], ...] = ({}, {"content": None}, {"content": ""})

Messages = Sequence[Mapping[str, Any]]
Attempt = Callable[[Messages], str]  # renders, "" for what the template refuses or cannot render


@dataclass(frozen=True, slots=True)
class TemplateNeeds:
    takes_text: bool
    takes_parts: bool
    written_arguments: bool
    fill: Mapping[str, Any]

    @classmethod
    def of(cls, attempt: Attempt) -> "TemplateNeeds":
        text, parts = attempt([_ASKS]), attempt([{**_ASKS, "content": [{"type": "text", "text": PROBE}]}])
        takes_text = PROBE in text
        return cls(
            takes_text=takes_text,
            takes_parts=PROBE in parts and (parts == text or not takes_text),
            **_needs_of_calls(attempt),
        )

    def adapted(self, messages: Messages) -> list[Mapping[str, Any]]:
        return [self._message(message) for message in messages]

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


def _needs_of_calls(attempt: Attempt) -> dict[str, Any]:
    """Objects are preferred: what a template writes of them, models were trained on."""
    for fill in _FILLS:
        from_object, from_text = _of_call(attempt, fill, {PROBE: 1}), _of_call(attempt, fill, _WRITTEN)
        printed_by_python = repr({PROBE: 1}) in from_object
        if PROBE in from_object and not (printed_by_python and _WRITTEN in from_text):
            return {"written_arguments": False, "fill": fill}
        if PROBE in from_text:
            return {"written_arguments": True, "fill": fill}
    fills = (fill for fill in _FILLS if _of_call(attempt, fill, {PROBE: 1}))  # of a template that shows no arguments
    return {"written_arguments": False, "fill": next(fills, {})}


def _of_call(attempt: Attempt, fill: Mapping[str, Any], arguments: object) -> str:
    call = {"id": _ID, "type": "function", "function": {"name": "probe", "arguments": arguments}}
    result = {"role": "tool", "name": "probe", "tool_call_id": _ID, "content": "?"}
    return attempt([{"role": "user", "content": "?"}, {"role": "assistant", **fill, "tool_calls": [call]}, result])
