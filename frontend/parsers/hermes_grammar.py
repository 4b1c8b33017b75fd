"""The form of an output with tool calls in it, as Hermes' and Qwen's models write them: a structural tag."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

BEGIN, END = "<tool_call>", "</tool_call>"
Form = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A function that the model may call."""

    name: str
    parameters: dict[str, Any] | None
    strict: bool  # what of its parameters cannot be enforced is refused; otherwise it is dropped with a warning


def calls_form(tools: Sequence[CallableTool], mode: Literal["auto", "required"], *, parallel: bool) -> Form:
    """Calls of `tools` and nothing else if `required`, or text in which calls may be; several only if `parallel`."""
    tags = [_tag(tool) for tool in tools]
    if mode == "required":
        many = {"separator": "\n", "at_least_one": True, "stop_after_first": not parallel}
        return _whole({"type": "tags_with_separator", "tags": tags, **many})
    return _whole({"type": "triggered_tags", "triggers": [BEGIN], "tags": tags, "stop_after_first": not parallel})


def _whole(node: Form) -> Form:
    return {"type": "structural_tag", "format": node}


def _tag(tool: CallableTool) -> Form:
    schema: Any = {"type": "object"} if tool.parameters is None else {"type": "object", **tool.parameters}
    return {
        "type": "tag",
        "begin": f'{BEGIN}\n{{"name": {_text(tool.name)}, "arguments": ',
        "content": {"type": "json_schema", "json_schema": schema, "lenient": not tool.strict},
        "end": f"}}\n{END}",
    }


def _text(name: str) -> str:
    return msgspec.json.encode(name).decode()
