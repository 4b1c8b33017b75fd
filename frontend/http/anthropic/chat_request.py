"""Translates a body of Anthropic's API into the body of a chat completion with the same output."""

from typing import Any

from paged_serve.protocol.errors import InvalidRequest

from ...conversation.conversation import check_depth
from .conversation import chat_messages, ends_with_answer
from .deferred_tools import loaded_tools
from .errors import THREAD
from .schemas import CountTokensRequest, MessagesRequest, ToolDefinition, ToolSelection

_SAME_NAME = ("max_tokens", "temperature", "top_p", "top_k", "stream")


def chat_request(body: MessagesRequest) -> dict[str, Any]:
    """The body of the chat completion. Raises InvalidRequest for contradictory fields and for a thread.

    A thread is not even ignored by a lenient server: the client would send only what is new in its next turn.
    """
    if body.thread is not None:
        raise InvalidRequest("thread is not supported: send the whole conversation in messages, without it", THREAD)
    fields = prompt_fields(body)
    fields |= {name: value for name in _SAME_NAME if (value := getattr(body, name)) is not None}
    if body.stop_sequences:
        fields["stop"] = body.stop_sequences
    if body.output_config is not None and (form := body.output_config.format) is not None:
        check_depth(form.schema, "output_config.format.schema")
        fields["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "output", "schema": form.schema, "strict": True},
        }
    # A client that did not request thinking takes the first block for the answer.
    fields["include_reasoning"] = _thinks(body)
    fields["shows_thinking"] = body.thinking is None or body.thinking.display != "omitted"
    return fields


def prompt_fields(body: CountTokensRequest) -> dict[str, Any]:
    """The fields of the chat that determine its prompt and the tools that may be called."""
    messages = chat_messages(body.system, body.messages)
    # Chat templates read one of these two names; other templates ignore them.
    switches = dict.fromkeys(("enable_thinking", "thinking"), _thinks(body))
    fields: dict[str, Any] = {"messages": messages, "chat_template_kwargs": switches}
    if body.model is not None:
        fields["model"] = body.model
    if ends_with_answer(messages):
        fields["continue_final_message"] = True
    for i, tool in enumerate(body.tools or ()):
        check_depth(tool.input_schema, f"tools[{i}].input_schema")
    tools = loaded_tools(body.tools or (), body.messages)
    if tools:
        fields["tools"] = [_tool(tool) for tool in tools]
    if body.tool_choice is not None:
        fields |= _tool_choice(body.tool_choice, tools)
    if body.output_config is not None and (effort := body.output_config.effort) is not None:
        fields["reasoning_effort"] = effort
    return fields


def _thinks(body: CountTokensRequest) -> bool:
    return body.thinking is not None and body.thinking.type != "disabled"


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _tool_choice(chosen: ToolSelection, tools: list[ToolDefinition]) -> dict[str, Any]:
    names = {tool.name for tool in tools}
    if (chosen.name is not None) != (chosen.type == "tool"):
        raise InvalidRequest("tool_choice.name requires the type 'tool'", "tool_choice.name")
    if chosen.name is not None and chosen.name not in names:
        raise InvalidRequest(
            f"tool_choice.name is {chosen.name!r}; tools has {', '.join(sorted(names)) or 'none'}", "tool_choice.name"
        )
    if chosen.type == "any" and not tools:
        raise InvalidRequest("tool_choice is of type 'any' but there are no tools", "tool_choice.type")
    if not tools:
        return {}
    fields: dict[str, Any] = {}
    match chosen.type:
        case "auto" | "none":
            fields["tool_choice"] = chosen.type
        case "any":
            fields["tool_choice"] = "required"
        case "tool":
            fields["tool_choice"] = {"type": "function", "function": {"name": chosen.name}}
    if chosen.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    return fields
