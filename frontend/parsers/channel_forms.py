"""Required forms of outputs in channels: they constrain the final message or the calls.

Unconstrained reasoning of any length may come first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.structured_outputs import StructuredOutputsParams

from .call_forms import CallableTool, CallForm, calls_form

_Node = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChannelForm:
    """How messages in channels must be written in a constrained output; the prompt ends with `next`."""

    final: str  # begins an answer
    call: CallForm
    reasoning: str = ""  # begins a message of reasoning, if the model writes any
    end: str = ""  # ends it; a single token
    next: str = ""  # between that and the next message
    has_one_call: bool = False  # a call ends the output


def final_form(form: ChannelForm, params: StructuredOutputsParams) -> StructuredOutputsParams:
    """The form applied to the final message. Raises InvalidRequest for a kind that a structural tag cannot contain."""
    return _behind_reasoning(form, [_final(form, _node(params))])


def channel_calls(
    form: ChannelForm, tools: Sequence[CallableTool], mode: Literal["auto", "required"], *, parallel: bool
) -> StructuredOutputsParams:
    """Calls of `tools`; with `auto`, either calls or a final message of any text."""
    calls = calls_form(form.call, tools, "required", parallel=parallel and not form.has_one_call)["format"]
    return _behind_reasoning(form, [calls] if mode == "required" else [_final(form, {"type": "any_text"}), calls])


def _behind_reasoning(form: ChannelForm, messages: list[_Node]) -> StructuredOutputsParams:
    last = {"type": "or", "elements": messages}
    if not form.reasoning:
        return StructuredOutputsParams(
            structural_tag=msgspec.json.encode({"type": "structural_tag", "format": last}).decode()
        )
    reasoning = [{"type": "const_string", "value": form.reasoning}, {"type": "any_text"}]
    behind = {"type": "const_string", "value": form.end + form.next}
    either = {"type": "or", "elements": [{"type": "sequence", "elements": [*reasoning, behind, last]}, last]}
    tag = {"type": "structural_tag", "format": either}
    return StructuredOutputsParams(structural_tag=msgspec.json.encode(tag).decode())


def _final(form: ChannelForm, content: _Node) -> _Node:
    return {"type": "tag", "begin": form.final, "content": content, "end": ""}


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
