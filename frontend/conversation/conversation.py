"""Turns messages, tools and template arguments into the input of a chat template, for HTTP and LLM.chat alike.

A template sees each message, call and tool as its sender wrote it, with the keys in the sender's order, because models
were trained on JSON in that order. Only parts without meaning are left out (nulls, empty lists of calls, the fields in
sent_back.py).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from paged_serve.protocol.errors import ConfigError, InvalidRequest
from paged_serve.protocol.special_tokens import SPECIAL_TOKENS

from .messages import (
    MAX_JSON_DEPTH,
    ChatMessage,
    Conversation,
    Documents,
    Function,
    FunctionCall,
    Messages,
    TemplateKwargs,
    Tool,
    ToolCall,
    Tools,
)
from .sent_back import without_sent_back
from .strict_json import decode_body
from .template_needs import GLOBALS
from .unknown_fields import check_number_of_nodes

# Names with a meaning for the rendering, which a request must not replace.
RESERVED_KWARGS = {
    *("self", "messages", "tools", "documents", "add_generation_prompt", "tokenize", "chat_template"),
    *("continue_final_message", "moment", *SPECIAL_TOKENS, *GLOBALS),
}
MAX_KWARG_CHARS = 64
# The key that wraps arguments which are not an object, as Anthropic has clients send them.
INVALID_JSON = "INVALID_JSON"
LEGACY_ID_CHARS = 9  # of the ids that function calls get, all digits, as Mistral's templates demand
_MESSAGE_KEYS = without_sent_back(ChatMessage) - {"refusal", "audio", "function_call", "type"}
_CALL_KEYS, _CALLED_KEYS = without_sent_back(ToolCall), without_sent_back(FunctionCall)
_TOOL_KEYS, _FUNCTION_KEYS = without_sent_back(Tool), without_sent_back(Function)


class ConversationFields(Protocol):
    """The fields of a body that the chat template reads."""

    @property
    def messages(self) -> Messages: ...
    @property
    def tools(self) -> Tools | None: ...
    @property
    def documents(self) -> Documents | None: ...
    @property
    def add_generation_prompt(self) -> bool | None: ...
    @property
    def continue_final_message(self) -> bool | None: ...
    @property
    def chat_template_kwargs(self) -> TemplateKwargs | None: ...
    @property
    def reasoning_effort(self) -> str | None: ...
    @property
    def verbosity(self) -> str | None: ...


class TemplateInput(msgspec.Struct):
    """The arguments of `ChatTemplate.render`, except for the time."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    add_generation_prompt: bool
    continue_final_message: bool
    kwargs: dict[str, Any]


class _Sent(msgspec.Struct):
    """The same body, with the keys that the sender wrote, in the sender's order."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None


_decode_sent = msgspec.json.Decoder(_Sent).decode


def template_input(
    body: ConversationFields, raw: bytes, default_kwargs: Mapping[str, Any], *, use_tools: bool = True
) -> TemplateInput:
    """The template's input; `raw`: the JSON that `body` was decoded from. Raises InvalidRequest for invalid content."""
    kwargs = {**default_kwargs, **_of_fields(body), **_checked_kwargs(body.chat_template_kwargs)}
    if body.documents:
        check_depth(body.documents, "documents")
        kwargs["documents"] = body.documents
    goes_on = bool(body.continue_final_message)
    if goes_on and body.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt are both true; set only one", "continue_final_message"
        )
    begins_turn = not goes_on if body.add_generation_prompt is None else body.add_generation_prompt
    check_number_of_nodes(_written_arguments(body.messages).encode())
    sent = _decode_sent(raw)
    messages = [_message(message, f"messages[{i}]") for i, message in enumerate(_with_tool_calls(sent.messages))]
    tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(sent.tools or ())]
    return TemplateInput(messages, tools if use_tools and tools else None, begins_turn, goes_on, kwargs)


def default_template_kwargs(text: str) -> dict[str, Any]:
    """The values of --default-chat-template-kwargs. Raises ConfigError."""
    origin = "default_chat_template_kwargs"
    try:
        return _checked_kwargs(msgspec.json.decode(text or "{}", type=TemplateKwargs), origin)
    except (msgspec.DecodeError, RecursionError) as error:
        example = 'such as {"enable_thinking": false}'
        raise ConfigError(f"{origin}={text:.200}: must be a JSON object, {example}: {error}") from None
    except InvalidRequest as error:
        raise ConfigError(error.message) from None


def conversation_of(conversation: Mapping[str, Any]) -> tuple[Conversation, bytes]:
    """Convert Python objects with the fields of Conversation, and return them with their JSON.

    They are checked like the body of an HTTP request. Raises InvalidRequest with the same messages.
    """
    try:
        raw = msgspec.json.encode({name: value for name, value in conversation.items() if value is not None})
    except (TypeError, UnicodeError, RecursionError, OverflowError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else "a value in it has no JSON form"
        raise InvalidRequest(
            f"the conversation cannot be written as JSON: {reason}; use dicts, lists, strings and numbers", "messages"
        ) from None
    body, _ = decode_body(Conversation, raw)
    return body, raw


def check_depth(value: object, field: str, levels: int = MAX_JSON_DEPTH) -> None:
    """Raises InvalidRequest when lists and objects are nested more than `levels` deep."""
    if not isinstance(value, (dict, list)):
        return
    if not levels:
        raise InvalidRequest(f"{field} is nested more than {MAX_JSON_DEPTH} levels deep", field)
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, (dict, list)):
            check_depth(inner, field, levels - 1)


def _checked_kwargs(kwargs: TemplateKwargs | None, origin: str = "chat_template_kwargs") -> dict[str, Any]:
    for name in kwargs or {}:
        if not name.isidentifier() or len(name) > MAX_KWARG_CHARS or name in RESERVED_KWARGS:
            raise InvalidRequest(
                f"{origin} cannot set {name[:MAX_KWARG_CHARS]!r}; it must be a variable of the template", origin
            )
    return dict(kwargs or {})


def _of_fields(body: ConversationFields) -> dict[str, Any]:
    """Template variables for OpenAI's fields: most templates have a switch for reasoning, under one of two names."""
    kwargs: dict[str, Any] = {}
    if body.verbosity is not None:
        kwargs["verbosity"] = body.verbosity
    if body.reasoning_effort is not None:
        thinks = body.reasoning_effort != "none"
        kwargs |= {"enable_thinking": thinks, "thinking": thinks}
        if thinks:
            kwargs["reasoning_effort"] = body.reasoning_effort
    return kwargs


def _only(sent: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """`sent` with known keys only; a lenient server has already warned about the others."""
    return {key: value for key, value in sent.items() if key in keys}


def _with_tool_calls(messages: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Convert function calls and their results, one per message, into tool calls, their successors."""
    call_id = ""
    for i, message in enumerate(messages):
        if (call := message.get("function_call")) is not None:
            if message.get("tool_calls"):
                raise InvalidRequest(f"messages[{i}] has both function_call and tool_calls; send only one", "messages")
            call_id = f"{i:0{LEGACY_ID_CHARS}d}"
            message = {**message, "tool_calls": [{"id": call_id, "type": "function", "function": call}]}
        if message["role"] == "function":
            if message.get("name") is None:
                raise InvalidRequest(f"messages[{i}].name is required for the role 'function'", f"messages[{i}].name")
            message = {
                **message,
                "role": "tool",
                "content": message.get("content") or "",
                "tool_call_id": call_id or None,
            }
        yield message


def _message(sent: Mapping[str, Any], place: str) -> dict[str, Any]:
    message = {key: value for key, value in _only(sent, _MESSAGE_KEYS).items() if value is not None}
    if message.get("tool_calls") == []:
        del message["tool_calls"]
    if "content" not in message and message["role"] == "assistant" and sent.get("refusal") is not None:
        message["content"] = sent["refusal"]
    if "content" not in message:
        if message["role"] != "assistant":
            raise InvalidRequest(f"{place}.content is required for the role {message['role']!r}", f"{place}.content")
        if "tool_calls" not in message:
            message["content"] = ""
    if isinstance(message.get("content"), list):
        message["content"] = [_part(part) for part in message["content"]]
    if (reasoning := message.get("reasoning_content", message.get("reasoning"))) is not None:
        message |= dict.fromkeys(
            ("reasoning", "reasoning_content", "thinking"), reasoning
        )  # templates read any of them
    if "tool_calls" in message:
        message["tool_calls"] = [_call(call, place) for call in message["tool_calls"]]
    return message


def _part(sent: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "text", "text": sent["refusal"]} if sent["type"] == "refusal" else _only(sent, ("type", "text"))


def _call(sent: Mapping[str, Any], place: str) -> dict[str, Any]:
    call = {key: value for key, value in _only(sent, _CALL_KEYS).items() if value is not None}
    function = call["function"] = _only(call["function"], _CALLED_KEYS)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            arguments = function["arguments"] = {INVALID_JSON: arguments}  # the length limit cut off the call
    check_depth(arguments, f"{place}.tool_calls")
    function["arguments"] = function.get("arguments") or {}
    return call


def _tool(sent: Mapping[str, Any], place: str) -> dict[str, Any]:
    tool = _only(sent, _TOOL_KEYS)
    tool["function"] = _only(tool["function"], _FUNCTION_KEYS)
    check_depth(tool["function"].get("parameters"), f"{place}.function.parameters")
    return tool


def _written_arguments(messages: Messages) -> str:
    """The JSON texts in the arguments of earlier calls, which the node count of the body does not include."""
    calls = [call.function for message in messages for call in message.tool_calls or ()]
    calls += [message.function_call for message in messages if message.function_call is not None]
    return "".join(function.arguments for function in calls if isinstance(function.arguments, str))
