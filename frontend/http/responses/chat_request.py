"""Translates a body of the Responses API into the body of a chat completion with the same output."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from paged_serve.protocol.errors import InvalidRequest

from .conversation import chat_messages
from .schemas import GivenItem, ItemReference, MessageItem, ResponsesRequest, TextFormat
from .tools import hosted_warnings, repeated_tools, tool_choice, tool_fields

LOGPROBS = "message.output_text.logprobs"
ENCODED_REASONING = "reasoning.encrypted_content"
INCLUDED = (LOGPROBS, ENCODED_REASONING, "web_search_call.action.sources")  # the last has no effect: no search is run
NOT_STORED = "responses are not stored by this server (see --store-responses)"
_SAME_NAME = (
    *("model", "temperature", "top_p", "top_k", "seed", "ignore_eos", "stream", "parallel_tool_calls", "metadata"),
    *("repetition_penalty", "stop", "include_stop_str_in_output", "logit_bias", "skip_special_tokens"),
    *("structured_outputs", "vllm_xargs", "priority", "cache_salt"),
    *("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
)


@dataclass(frozen=True, slots=True)
class Earlier:
    """The stored data that a request refers to: the earlier conversation, and items by id."""

    items: Sequence[GivenItem] = ()
    by_id: Mapping[str, GivenItem] = field(default_factory=dict)
    is_stored: bool = False  # whether this server stores responses at all


NOTHING_EARLIER = Earlier()


def chat_request(body: ResponsesRequest, given: Sequence[GivenItem], earlier: Earlier) -> dict[str, Any]:
    """The body of the chat completion; `given`: the items of `body`. Raises InvalidRequest for unsupported features."""
    _check(body, earlier)
    messages = chat_messages(body.instructions, [*earlier.items, *given], len(earlier.items))
    fields: dict[str, Any] = {"messages": messages}
    fields |= {name: value for name in _SAME_NAME if (value := getattr(body, name)) is not None}
    if body.max_output_tokens is not None:
        fields["max_completion_tokens"] = body.max_output_tokens
    fields |= tool_fields(body.tools or ())
    if body.tool_choice is not None and ("tools" in fields or body.tool_choice != "auto"):  # "auto" is the default
        fields["tool_choice"] = tool_choice(body.tool_choice, body.tools or ())
    if body.text is not None and body.text.format is not None:
        fields["response_format"] = _response_format(body.text.format)
    if body.text is not None and body.text.verbosity is not None:
        fields["verbosity"] = body.text.verbosity
    if body.reasoning is not None and body.reasoning.effort is not None:
        fields["reasoning_effort"] = body.reasoning.effort
    if LOGPROBS in (body.include or ()):
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    return fields


def given_items(body: ResponsesRequest, earlier: Earlier) -> list[GivenItem]:
    """The items of the body, with stored items in place of references. Raises InvalidRequest."""
    if isinstance(body.input, str):
        return [MessageItem(role="user", content=body.input)]
    items = list[GivenItem]()
    for i, item in enumerate(body.input):
        if not isinstance(item, ItemReference):
            items.append(item)
        elif (stored := earlier.by_id.get(item.id)) is not None:
            items.append(stored)
        else:
            why = "no stored response has such an item" if earlier.is_stored else NOT_STORED
            raise InvalidRequest(
                f"input[{i}] refers to {item.id!r:.100}: {why}; send the item itself", f"input[{i}].id"
            )
    return items


def warnings_of(body: ResponsesRequest, earlier: Earlier) -> list[str]:
    warnings = hosted_warnings(body.tools or ())
    if body.store and not earlier.is_stored:
        warnings.append(f"store: {NOT_STORED}; send the whole conversation in input each time")
    return warnings


def _check(body: ResponsesRequest, earlier: Earlier) -> None:
    _check_stored(body, earlier)
    if body.truncation == "auto":
        raise InvalidRequest(
            "truncation is 'auto': conversations are not truncated; send a shorter one, and 'disabled'",
            "truncation",
        )
    if body.stream_options is not None and body.stream_options.include_obfuscation:
        raise InvalidRequest(
            "stream_options.include_obfuscation is true: streams are not padded; leave it out",
            "stream_options.include_obfuscation",
        )
    if body.reasoning is not None and body.reasoning.mode not in (None, "standard"):
        raise InvalidRequest(
            f"reasoning.mode is {body.reasoning.mode!r:.60}: there is one mode; send 'standard', or leave it out",
            "reasoning.mode",
        )
    for name in body.include or ():
        if name not in INCLUDED:
            raise InvalidRequest(f"include has {name!r:.60}; it can have {', '.join(INCLUDED)}", "include")
    if body.top_logprobs and LOGPROBS not in (body.include or ()):
        raise InvalidRequest(f"top_logprobs is {body.top_logprobs}; it needs {LOGPROBS!r} in include", "top_logprobs")


def _check_stored(body: ResponsesRequest, earlier: Earlier) -> None:
    if earlier.is_stored:
        if body.background and body.store is False:
            raise InvalidRequest("background is true: such a response is stored; leave out store: false", "background")
        return
    if body.previous_response_id is not None:
        raise InvalidRequest(
            f"previous_response_id: {NOT_STORED}; send the conversation so far in input, including the output items",
            "previous_response_id",
        )
    if body.background:
        raise InvalidRequest(f"background: {NOT_STORED}; leave it out, and stream the answer", "background")


def _response_format(given: TextFormat) -> dict[str, Any]:
    if given.type != "json_schema":
        return {"type": given.type}
    if given.name is None or given.schema is None:
        missing = "name" if given.name is None else "schema"
        raise InvalidRequest(f"text.format of type 'json_schema' needs {missing}", f"text.format.{missing}")
    schema = {"name": given.name, "schema": given.schema, "strict": given.strict, "description": given.description}
    return {
        "type": "json_schema",
        "json_schema": {name: value for name, value in schema.items() if value is not None},
    }


def asked_of(body: ResponsesRequest, earlier: Earlier) -> dict[str, Any]:
    """The fields of the request that the response repeats, and those about its items."""
    asked: dict[str, Any] = {}
    if ENCODED_REASONING in (body.include or ()):
        asked["encodes_reasoning"] = True
    if earlier.is_stored:
        asked |= {"store": body.store is not False, "background": bool(body.background)}
    same = ("instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "prompt_cache_key", "tool_choice")
    more = ("max_tool_calls", "safety_identifier", "top_logprobs", "user", "previous_response_id")
    asked |= {name: value for name in (*same, *more) if (value := getattr(body, name)) is not None}
    for name in ("reasoning", "text"):
        if (value := getattr(body, name)) is not None:
            asked[name] = _without_nulls(msgspec.to_builtins(value))
    if body.tools:
        asked["tools"] = repeated_tools(body.tools)
    return asked


def _without_nulls(value: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_nulls(inner) if isinstance(inner, dict) and name == "format" else inner
        for name, inner in value.items()
        if inner is not None
    }
