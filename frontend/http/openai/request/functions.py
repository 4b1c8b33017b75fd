"""`functions` and `function_call`, the predecessors of `tools` and `tool_choice`: an answer has at most one call."""

from typing import Any

import msgspec

from paged_serve.protocol.errors import InvalidRequest

from ....conversation.messages import Tool
from .schemas import ChatCompletionRequest, ChatFields

_fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_list_of = msgspec.json.Decoder(list[msgspec.Raw]).decode


def with_tools(body: ChatCompletionRequest, raw: bytes, one_call: bool) -> tuple[ChatCompletionRequest, bytes]:
    """The body with tools instead of functions, and its JSON. `one_call`: whether outputs can be limited to one call.

    Raises InvalidRequest.
    """
    if not body.functions:
        if body.function_call not in (None, "none"):
            raise InvalidRequest(
                f"function_call is {body.function_call!r:.100} but there are no functions; add them, or leave it out",
                "function_call",
            )
        return body, raw
    for field in ("tools", "tool_choice"):
        if getattr(body, field):
            raise InvalidRequest(f"functions and {field} are both given; use only tools and tool_choice", field)
    translated = msgspec.structs.replace(
        body,
        tools=[Tool(function=function, type="function") for function in body.functions],
        tool_choice=_tool_choice(body),
        parallel_tool_calls=False if one_call else None,
        functions=None,
        function_call=None,
    )
    fields = _fields_of(raw)
    functions = _list_of(fields.pop("functions"))
    tools: list[dict[str, Any]] = [{"type": "function", "function": function} for function in functions]
    return translated, msgspec.json.encode(fields | {"tools": tools})


def names_function(body: ChatFields) -> bool:
    return bool(body.functions) and isinstance(body.function_call, dict)


def _tool_choice(body: ChatCompletionRequest) -> str | dict[str, Any]:
    match body.function_call:
        case None | "auto":
            return "auto"
        case "none":
            return "none"
        case {"name": str(name), **more} if not any(value is not None for value in more.values()):
            if any(function.name == name for function in body.functions or ()):
                return {"type": "function", "function": {"name": name}}
            known = ", ".join(function.name for function in body.functions or ())
            raise InvalidRequest(f"function_call names {name!r:.100}; functions has {known}", "function_call")
    raise InvalidRequest(
        f"function_call is {body.function_call!r:.100}; it must be 'none', 'auto', or {{\"name\": …}}", "function_call"
    )
