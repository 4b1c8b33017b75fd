"""The tools that an answer may or must call: `tool_choice`, `parallel_tool_calls`, `strict`."""

from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import msgspec

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.structured_outputs import StructuredOutputsParams

from ..conversation.conversation import check_depth
from ..conversation.messages import Tool, Tools
from .call_forms import CallableTool, CallForm, calls_form, written_call
from .channel_forms import ChannelForm, channel_calls
from .detection import ModelFormats
from .events import CallStart
from .formats import ToolFormat
from .output_parser import OutputParser
from .readers.states import CONTENT, Format, JsonCall, Skip, Text

Mode = Literal["none", "auto", "required"]
FIELD = "tool_choice"
PLAIN_CALLS = ToolFormat(  # a JSON list, which is the whole output
    "json",
    {
        "start": Skip({}, CONTENT, begins={"[": "list"}, keeps_space=True),
        CONTENT: Text("content"),
        "list": Skip({"[": "call"}, CONTENT),
        "call": JsonCall("more", is_known=True),
        "more": Skip({",": "call", "]": CONTENT}, CONTENT),
    },
    CallForm('{"name": {json}, "arguments": ', "}", "[", ", ", "[", "]", is_whole_output=True),
    start="start",
)


class ToolFields(Protocol):
    """The fields of a chat that choose tools."""

    @property
    def tools(self) -> Tools | None: ...
    @property
    def tool_choice(self) -> str | dict[str, Any] | None: ...
    @property
    def parallel_tool_calls(self) -> bool | None: ...


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The tools that the answer may call."""

    mode: Mode
    tools: tuple[Tool, ...]  # the tools that it may call
    parallel: bool
    is_named: bool = False  # one function was named; its finish reason is "stop"

    @property
    def callable(self) -> list[tuple[str, dict[str, Any] | None]]:
        """Names and parameters of the functions whose calls are parsed."""
        return [(tool.function.name, tool.function.parameters) for tool in self.tools if self.mode != "none"]

    def formats(self, of_model: ModelFormats) -> ModelFormats:
        """The formats of the answer. A model without a known format of calls writes those that it must make as JSON."""
        if self.mode == "required" and of_model.tools is None:
            return replace(of_model, tools=PLAIN_CALLS)
        return of_model

    def form(self, written: ToolFormat | None) -> StructuredOutputsParams | None:
        """The required form of the output, in the format `written` of `formats`; None if it is unconstrained.

        Raises InvalidRequest if that format is unknown, or has no way to write a tool's name.
        """
        if self.mode == "none" or not self.tools:
            return None
        if written is not None:
            for tool in self.tools:
                _check_name(written, tool.function.name)
        is_strict = any(tool.function.strict for tool in self.tools)
        if self.mode == "auto" and not is_strict and self.parallel:
            return None
        tools = [
            CallableTool(tool.function.name, tool.function.parameters, bool(tool.function.strict))
            for tool in self.tools
        ]
        if written is None:
            raise _no_form()
        if isinstance(written.form, ChannelForm):
            return channel_calls(written.form, tools, self.mode, parallel=self.parallel)
        form = calls_form(written.form, tools, self.mode, parallel=self.parallel)
        return StructuredOutputsParams(structural_tag=msgspec.json.encode(form).decode())


def _check_name(written: ToolFormat, name: str) -> None:
    """Refuse a name that a parser would not find in a call, as formats without quotes around names have no escapes."""
    call = written_call(written.form.call if isinstance(written.form, ChannelForm) else written.form, name)
    parser = OutputParser(Format(written.states, written.start), {name: {}})
    if [event.name for event in parser.push(call, final=True) if isinstance(event, CallStart)] != [name]:
        raise InvalidRequest(
            f"tools has the function {name!r:.140}, a name that cannot be read in a call as this model writes it "
            f"({written.name}); use letters, digits, '_' and '-'",
            "tools",
        )


def _no_form() -> InvalidRequest:
    return InvalidRequest(
        "strict tools and parallel_tool_calls: false need a known format of tool calls, but the chat template has "
        "none; start the server with --tool-call-parser, or send tool_choice 'required'",
        FIELD,
    )


def tool_choice_of(body: ToolFields) -> ToolChoice:
    """Raises InvalidRequest."""
    tools = tuple(body.tools or ())
    parallel = body.parallel_tool_calls is not False
    chosen = body.tool_choice
    if isinstance(chosen, dict):
        check_depth(chosen, FIELD)
        return _of_object(chosen, tools, parallel)
    if chosen not in (None, "none", "auto", "required"):
        raise InvalidRequest(
            f"tool_choice is {chosen!r:.60}; it must be 'none', 'auto', 'required', or an object that names a function",
            FIELD,
        )
    if chosen in ("auto", "required") and not tools:
        raise InvalidRequest(f"tool_choice is {chosen!r} but there are no tools", FIELD)
    return ToolChoice(chosen or ("auto" if tools else "none"), tools, parallel)  # type: ignore[arg-type]


def _of_object(chosen: dict[str, Any], tools: tuple[Tool, ...], parallel: bool) -> ToolChoice:
    match _without_nulls(chosen):
        case {"type": "function", "function": {"name": str(name), **other}, **more} if not other and not more:
            return ToolChoice("required", _named([name], tools), False, is_named=True)
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(entries)}}:
            names = [_name_of(entry) for entry in entries]
            return ToolChoice(mode, _named(names, tools), parallel)
    raise InvalidRequest(
        f"tool_choice is {chosen!r:.200}; an object is "
        '{"type": "function", "function": {"name": …}} or '
        '{"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": […]}}',
        FIELD,
    )


def _without_nulls(value: Any) -> Any:
    """The value without null fields, which count as absent."""
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _name_of(entry: Any) -> str:
    match entry:
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return name
    raise InvalidRequest(f"tool_choice allows {entry!r:.100}, which names no function", FIELD)


def _named(names: list[str], tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    known = {tool.function.name: tool for tool in tools}
    if missing := [name for name in names if name not in known]:
        raise InvalidRequest(
            f"tool_choice names the function {missing[0]!r:.100}; tools has {', '.join(sorted(known)) or 'none'}", FIELD
        )
    if not names:
        raise InvalidRequest("tool_choice allows no tool; name one, or send 'none'", FIELD)
    return tuple(known[name] for name in dict.fromkeys(names))
