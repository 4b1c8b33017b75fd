"""Required forms of outputs in channels (gpt-oss, harmony): they constrain the final message or a call.

Unconstrained reasoning of any length in the channel `analysis` may come first. A call ends the output, so there is at
most one.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.structured_outputs import StructuredOutputsParams

from .call_forms import CallableTool, arguments_object

_Node = dict[str, Any]
ANALYSIS, _FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
_NEXT = "<|end|><|start|>assistant"
_CALL = "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"


def final_form(params: StructuredOutputsParams) -> StructuredOutputsParams:
    """The form applied to the final message. Raises InvalidRequest for a kind that a structural tag cannot contain."""
    return _form([_tag(_FINAL, _node(params))])


def channel_calls(tools: Sequence[CallableTool], mode: Literal["auto", "required"]) -> StructuredOutputsParams:
    """One call of `tools`; with `auto`, either a call or a final message of any text."""
    calls = [_tag(_CALL.replace("{name}", tool.name), arguments_object(tool)) for tool in tools]
    return _form(calls if mode == "required" else [_tag(_FINAL, {"type": "any_text"}), *calls])


def written_channel_call(name: str) -> str:
    """An output that is one call without arguments."""
    return _CALL.replace("{name}", name) + "{}"


def _form(messages: list[_Node]) -> StructuredOutputsParams:
    last = {"type": "or", "elements": messages}
    reasoning = [{"type": "const_string", "value": ANALYSIS}, {"type": "any_text"}]
    behind = {"type": "sequence", "elements": [*reasoning, {"type": "const_string", "value": _NEXT}, last]}
    form = {"type": "structural_tag", "format": {"type": "or", "elements": [behind, last]}}
    return StructuredOutputsParams(structural_tag=msgspec.json.encode(form).decode())


def _tag(begin: str, content: _Node) -> _Node:
    return {"type": "tag", "begin": begin, "content": content, "end": ""}


def _node(params: StructuredOutputsParams) -> _Node:
    for name in ("disable_any_whitespace", "whitespace_pattern", "disable_additional_properties"):
        if getattr(params, name):
            raise _refusal(name)
    if params.json is not None:
        return {"type": "json_schema", "json_schema": msgspec.json.decode(params.json)}
    if params.json_object:
        return {"type": "json_schema", "json_schema": {"type": "object"}}
    if params.regex is not None:
        return {"type": "regex", "pattern": params.regex}
    if params.choice is not None:
        return {"type": "or", "elements": [{"type": "const_string", "value": text} for text in params.choice]}
    raise _refusal("grammar" if params.grammar is not None else "structural_tag")


def _refusal(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name} is not supported for a model that writes in channels; use only json, json_object, regex or choice"
    )
