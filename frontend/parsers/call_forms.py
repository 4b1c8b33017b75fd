"""The required form of an output with tool calls, in the model's format, as a structural tag."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

Form = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a call must be written in a constrained output: `begin`, the arguments, `end`.

    {name} is replaced by the tool's name, {json} by its name as a JSON string. Arguments are a JSON object, unless
    `parameter_begin`, which contains {key}, is set: then they are written one by one.
    """

    begin: str
    end: str
    trigger: str  # the text that begins calls within other text
    separator: str = ""
    before: str = ""  # before all calls
    after: str = ""  # after all calls
    id_pattern: str = ""  # of the call's id, if the format has one behind `begin`
    behind_id: str = ""  # between the id and the arguments; with {name} as in `begin`
    parameter_begin: str = ""
    parameter_end: str = ""
    parameter_separator: str = ""
    plain_text: bool = False  # strings are written without quotes and escapes,
    text_begin: str = ""  # between these instead of `parameter_begin` and `parameter_end`, if they are set
    text_end: str = ""
    is_whole_output: bool = False  # `trigger` begins calls only at the beginning of an output


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A function that the model may call."""

    name: str
    parameters: dict[str, Any] | None
    strict: bool  # parts of `parameters` that cannot be enforced are refused; otherwise ignored with a warning


def calls_form(
    form: CallForm, tools: Sequence[CallableTool], mode: Literal["auto", "required"], *, parallel: bool
) -> Form:
    """With `required` the output is only calls of `tools`; with `auto` it is text that may contain calls. Several calls
    are allowed only with `parallel`."""
    tags = [_tag(form, tool) for tool in tools]
    calls: Form = {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": form.separator,
        "at_least_one": True,
        "stop_after_first": not parallel,
    }
    if form.before:
        calls = {"type": "tag", "begin": form.before, "content": calls, "end": form.after}
        tags = [calls]
    if mode == "auto" and form.is_whole_output:
        either = {"type": "or", "elements": [calls, {"type": "regex", "pattern": _other_texts(form.trigger)}]}
        calls = {"type": "sequence", "elements": [{"type": "regex", "pattern": r"\s*"}, either]}
    elif mode == "auto":
        calls = {
            "type": "triggered_tags",
            "triggers": [form.trigger],
            "tags": tags,
            "stop_after_first": not parallel or bool(form.before),
        }
    return {"type": "structural_tag", "format": calls}


def _other_texts(begin: str) -> str:
    """A regular expression for all texts that begin neither with `begin` nor with white space."""
    chars = [rf"\x{{{ord(char):x}}}" for char in begin]
    others = [rf"[^{char}]" if i else rf"[^\s{char}]" for i, char in enumerate(chars)]
    branches = (f"{''.join(chars[:i])}(?:{other}[\\s\\S]*)?" for i, other in enumerate(others))
    return "|".join(branches)


def _tag(form: CallForm, tool: CallableTool) -> Form:
    begin = _with_name(form.begin, tool.name)
    return {"type": "tag", "begin": begin, "content": _arguments(form, tool), "end": form.end}


def _with_name(text: str, name: str) -> str:
    return text.replace("{json}", msgspec.json.encode(name).decode()).replace("{name}", name)


def written_call(form: CallForm, name: str) -> str:
    """An output that is one call without arguments."""
    call_id = "0" if form.id_pattern else ""
    begin = _with_name(f"{form.begin}{call_id}{form.behind_id}", name)
    return f"{form.before}{begin}{'' if form.parameter_begin else '{}'}{form.end}{form.after}"


def _arguments(form: CallForm, tool: CallableTool) -> Form:
    schema = {"type": "object"} if tool.parameters is None else {"type": "object", **tool.parameters}
    if form.parameter_begin:
        return {
            "type": "parameters",
            "schema": schema,
            "begin": form.parameter_begin,
            "end": form.parameter_end,
            "separator": form.parameter_separator,
            "plain_text": form.plain_text,
            "text_begin": form.text_begin or form.parameter_begin,
            "text_end": form.text_end or form.parameter_end,
            "lenient": not tool.strict,
        }
    # No others than those that are declared.
    arguments = {"type": "json_schema", "json_schema": schema, "lenient": not tool.strict, "closes": True}
    if not form.id_pattern:
        return arguments
    call_id = {"type": "regex", "pattern": form.id_pattern}
    behind = {"type": "const_string", "value": _with_name(form.behind_id, tool.name)}
    return {"type": "sequence", "elements": [call_id, behind, arguments]}
