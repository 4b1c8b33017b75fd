"""Translates the custom tools of a chat into functions."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from paged_serve.protocol.errors import InvalidRequest

from ....conversation.strict_json import decode_body
from ....conversation.unknown_fields import check_number_of_nodes
from ....parsers.custom_tools import InputFormat, arguments_of, as_function, check_names
from .schemas import ChatCompletionRequest

_Json = dict[str, Any]
_Name = Annotated[str, Meta(min_length=1, max_length=128)]
_INTERNAL = "custom_tools"


class WithCustomTools(ChatCompletionRequest, frozen=True, kw_only=True):
    """A chat whose custom tools are translated."""

    custom_tools: tuple[str, ...] = ()  # the names of the functions that replace them


class CustomTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: _Name
    description: str | None = None
    format: InputFormat | None = None


class _CustomCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    input: str


def translate(raw: bytes, lenient: bool) -> tuple[bytes, list[str]]:
    """The JSON of a WithCustomTools, and an empty list of warnings. Raises InvalidRequest."""
    if (body := _with_custom(raw)) is None:
        return raw, []
    body[_INTERNAL] = _as_functions(body)
    return msgspec.json.encode(body), []


def without_custom_tools(raw: bytes) -> bytes:
    """The JSON of a chat with functions in place of its custom tools. Raises InvalidRequest."""
    if (body := _with_custom(raw)) is None:
        return raw
    _as_functions(body)
    return msgspec.json.encode(body)


def _with_custom(raw: bytes) -> _Json | None:
    """The body if it may have custom tools. None otherwise, and for invalid JSON, which its decoder reports."""
    if b'"custom' not in raw:
        return None
    check_number_of_nodes(raw)
    try:
        body: _Json = msgspec.json.decode(raw, type=_Json)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if _INTERNAL in body:
        raise InvalidRequest(f"{_INTERNAL} is not a field of this route; did you mean tools?", _INTERNAL)
    return body


def _as_functions(body: _Json) -> list[str]:
    """Replace custom tools by functions; returns the functions' names."""
    names = list[str]()
    for i, tool in enumerate(_list(body.get("tools"))):
        if tool.get("type") == "custom":
            given = _decoded(CustomTool, tool.get("custom"), f"tools[{i}].custom")
            names.append(given.name)
            body["tools"][i] = {
                "type": "function",
                "function": as_function(given.name, given.description, given.format, f"tools[{i}].custom"),
            }
    for i, message in enumerate(_list(body.get("messages"))):
        for j, call in enumerate(_list(message.get("tool_calls"))):
            if call.get("type") == "custom":
                _call_as_function(call, f"messages[{i}].tool_calls[{j}].custom")
    if "tool_choice" in body:
        body["tool_choice"] = _chosen(body["tool_choice"])
    check_names([tool["function"]["name"] for tool in _list(body.get("tools")) if _is_named(tool)], names)
    return names


def _call_as_function(call: _Json, place: str) -> None:
    given = _decoded(_CustomCall, call.pop("custom", None), place)
    call["type"], call["function"] = "function", {"name": given.name, "arguments": arguments_of(given.input)}


def _function_named(entry: Any) -> Any:
    match entry:
        case {"type": "custom", "custom": named}:
            return {**entry, "type": "function", "function": named, "custom": None}
    return entry


def _chosen(choice: Any) -> Any:
    match choice:
        case {"type": "allowed_tools", "allowed_tools": {"tools": list(entries), **more}}:
            return {**choice, "allowed_tools": {**more, "tools": [_function_named(entry) for entry in entries]}}
    return _function_named(choice)


def _decoded(kind: Any, given: Any, place: str) -> Any:
    if isinstance(given, dict):
        given = {name: value for name, value in given.items() if value is not None}
        if isinstance(held := given.get("format"), dict) and isinstance(held.get("grammar"), dict):  # as chats nest it
            given["format"] = {**{name: value for name, value in held.items() if name != "grammar"}, **held["grammar"]}
    try:
        return decode_body(kind, msgspec.json.encode(given))[0]
    except InvalidRequest as error:
        raise InvalidRequest(f"{place}: {error.message}", place) from None


def _list(value: Any) -> list[_Json]:
    """The objects in a list; none if `value` is not a list, which the decoder reports."""
    return value if isinstance(value, list) and all(isinstance(entry, dict) for entry in value) else []


def _is_named(tool: _Json) -> bool:
    return isinstance(tool.get("function"), dict) and isinstance(tool["function"].get("name"), str)
