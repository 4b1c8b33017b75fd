"""Turns the tools of a request into the functions of a chat, and names of functions back into those of the tools."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from paged_serve.protocol.errors import InvalidRequest

from ...conversation.conversation import check_depth
from ...conversation.messages import MAX_TOOLS
from ...parsers.custom_tools import as_function, check_names
from .tool_schemas import MAX_NAME_CHARS, CustomTool, FunctionTool, Hosted, HostedTool, NamespaceTool, Tool

_HOSTED = frozenset(str(kind.__struct_config__.tag) for kind in get_args(Hosted))
_SEPARATOR = "__"
_SHOWN_IF_NULL = ("name", "description", "parameters", "strict")  # OpenAI's answers always have these fields
_Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that the client runs, and the name and description of the function that the model gets for it."""

    tool: FunctionTool | CustomTool
    name: str
    description: str | None
    place: str  # in the request


def function_name(namespace: str | None, name: str) -> str:
    """The name that the model gets for a tool. It depends on nothing else, so earlier calls keep their names."""
    if namespace is None:
        return name
    joined = _prefix(namespace) + name
    if len(joined) <= MAX_NAME_CHARS:
        return joined
    digest = hashlib.sha256(joined.encode()).hexdigest()[:16]
    return f"{joined[: MAX_NAME_CHARS - len(digest) - 1]}_{digest}"


def namespaced_names(tools: Sequence[_Json]) -> Mapping[str, tuple[str, str]]:
    """Name of a function -> (namespace, name) of its tool. `tools`: as an answer repeats them."""
    return {
        function_name(group["name"], tool["name"]): (group["name"], tool["name"])
        for group in tools
        if group["type"] == "namespace"
        for tool in group["tools"]
    }


def repeated_tools(given: Sequence[Tool]) -> list[_Json]:
    """The tools that the answer repeats: those that the model gets."""
    return [_repeated(msgspec.to_builtins(tool)) for tool in given if not isinstance(tool, HostedTool)]


def _repeated(tool: _Json) -> _Json:
    if tool["type"] == "namespace":
        return {**tool, "tools": [_repeated(inner) for inner in tool["tools"]]}
    return {name: value for name, value in tool.items() if value is not None or name in _SHOWN_IF_NULL}


def tool_fields(given: Sequence[Tool]) -> _Json:
    """The chat's fields, none without tools. Raises InvalidRequest for tools that cannot be offered to the model."""
    tools = [*_offered_tools(given)]
    if not tools:
        if hosted := _hosted(given):
            raise InvalidRequest(
                f"tools has only {hosted}, which this server cannot run; offer a function that does it, or leave tools "
                "out",
                "tools",
            )
        return {}
    _check(tools)
    custom = [tool.name for tool in tools if isinstance(tool.tool, CustomTool)]
    check_names([tool.name for tool in tools], custom)
    return {"tools": [{"type": "function", "function": _function(tool)} for tool in tools], "custom_tools": custom}


def _check(tools: Sequence[OfferedTool]) -> None:
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(
            f"tools has {len(tools)} tools, those of namespaces included; at most {MAX_TOOLS} are accepted", "tools"
        )
    num_with = Counter(tool.name for tool in tools)
    for tool in tools:
        if tool.name != tool.tool.name and num_with[tool.name] > 1:
            raise InvalidRequest(
                f"{tool.place} and another tool are both offered to the model as {tool.name!r}; rename one of them",
                f"{tool.place}.name",
            )
        callers = tool.tool.allowed_callers
        if callers is not None and "direct" not in callers:
            raise InvalidRequest(
                f"{tool.place}.allowed_callers is {callers}: here only the model calls tools; add 'direct', or leave "
                "the tool out",
                f"{tool.place}.allowed_callers",
            )
        if isinstance(tool.tool, FunctionTool):
            check_depth(tool.tool.output_schema, f"{tool.place}.output_schema")


def _in_namespaces(given: Sequence[Tool]) -> Iterator[tuple[NamespaceTool, FunctionTool | CustomTool]]:
    for group in given:
        if isinstance(group, NamespaceTool):
            for tool in group.tools:
                yield group, tool


def hosted_warnings(given: Sequence[Tool]) -> list[str]:
    """A warning if some of the tools are of those that only OpenAI runs."""
    if not (names := _hosted(given)):
        return []
    return [f"tools: this server cannot run {names}; the model answers without it"]


def _hosted(given: Sequence[Tool]) -> str:
    return ", ".join(
        dict.fromkeys(str(type(tool).__struct_config__.tag) for tool in given if isinstance(tool, HostedTool))
    )


def _offered_tools(given: Sequence[Tool]) -> Iterator[OfferedTool]:
    for i, tool in enumerate(given):
        if isinstance(tool, NamespaceTool):
            for j, inner in enumerate(tool.tools):
                described = _with_namespace(inner.description, tool) if j == 0 else inner.description
                name = function_name(tool.name, inner.name)
                yield OfferedTool(inner, name, described, f"tools[{i}].tools[{j}]")
        elif not isinstance(tool, HostedTool):
            yield OfferedTool(tool, tool.name, tool.description, f"tools[{i}]")


def _with_namespace(description: str | None, group: NamespaceTool) -> str | None:
    """The description of a namespace's first tool. It describes the namespace, too: templates show only functions."""
    if not group.description:
        return description
    about = f"About all tools named {_prefix(group.name)}…: {group.description}"
    return f"{about}\n\n{description}" if description else about


def _prefix(namespace: str) -> str:
    return namespace if namespace.endswith(_SEPARATOR) else namespace + _SEPARATOR


def _function(tool: OfferedTool) -> _Json:
    if isinstance(tool.tool, CustomTool):
        return as_function(tool.name, tool.description, tool.tool.format, tool.place)
    fields: _Json = {"name": tool.name, "description": tool.description}
    fields |= {"parameters": tool.tool.parameters, "strict": tool.tool.strict}
    return {name: value for name, value in fields.items() if value is not None}


def tool_choice(chosen: str | _Json, given: Sequence[Tool]) -> Any:
    """The chat's `tool_choice`; most invalid values are left for the chat to refuse."""
    match chosen:
        case {"type": "allowed_tools", "mode": mode, "tools": list(entries)}:
            allowed = [named for entry in entries for named in _allowed(entry, given)]
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}}
        case {"type": str(kind)} if kind in _HOSTED:
            raise InvalidRequest(
                f"tool_choice is {kind!r}, which this server cannot run; choose a function, or 'auto'", "tool_choice"
            )
    return _function_named(chosen)


def _allowed(entry: Any, given: Sequence[Tool]) -> list[Any]:
    match entry:
        case {"type": "namespace", "name": name}:
            return [
                _named(function_name(group.name, tool.name))
                for group, tool in _in_namespaces(given)
                if group.name == name
            ]
        case {"type": str(kind)} if kind in _HOSTED:
            return []
    return [_function_named(entry)]


def _function_named(chosen: Any) -> Any:
    match chosen:
        case {"type": "function" | "custom", "namespace": str(namespace), "name": str(name)}:
            return _named(function_name(namespace, name))
        case {"type": "function" | "custom", "name": name}:
            return _named(name)
    return chosen


def _named(name: Any) -> _Json:
    return {"type": "function", "function": {"name": name}}
