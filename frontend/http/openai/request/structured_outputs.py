"""Turns the form that a body requires of its output, in any of the usual fields, into a grammar."""

from typing import Any

import msgspec

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.structured_outputs import Grammar, StructuredOutputsParams

from ....parsers.channel_forms import final_form
from ....parsers.output_reading import OutputReading
from ....structured_outputs.choices import without_bad_words
from ...service import Service
from .schemas import ResponseFormat, SamplingFields


async def grammar_of(
    service: Service,
    body: SamplingFields,
    calls: StructuredOutputsParams | None = None,
    reading: OutputReading | None = None,
) -> tuple[Grammar | None, list[str]]:
    """(grammar or None, warnings about parts that are not enforced). `calls`: the required form of tool calls.

    `reading`: the parser of a chat, whose reasoning is unconstrained and comes before the required form.

    Raises InvalidRequest, naming the field of the body, for an impossible form.
    """
    form, field = None, "structured_outputs"
    if body.structured_outputs is not None:
        form = body.structured_outputs.params()
    if body.response_format is not None and (asked := _form(body.response_format)) is not None:
        if form is not None:
            raise InvalidRequest("response_format and structured_outputs are both given; give one", "response_format")
        form, field = asked, "response_format"
    if calls is not None:
        if form is not None:
            raise InvalidRequest(f"{field} and forced or strict tool calls cannot be combined; leave one out", field)
        form, field = calls, "tools"
    if form is None:
        return None, []
    words = body.bad_words or ()
    num_searched = len(words) * sum(map(len, form.choice or ()))
    form = await service.off_loop(num_searched, without_bad_words, form, words)
    try:
        if (channels := service.formats.channels) is not None and reading is not None and calls is None:
            form = final_form(channels, form)
        grammar, warnings = await service.grammars.compile(form)
        return grammar if reading is None else reading.behind_reasoning(grammar, service.tokenizer), warnings
    except InvalidRequest as refused:
        raise InvalidRequest(f"{field}: {refused}", field) from None


def _form(given: ResponseFormat) -> StructuredOutputsParams | None:
    """None: any text."""
    _check_fields(given)
    match given.type:
        case "json_schema":
            assert given.json_schema is not None
            schema = given.json_schema.schema
            return StructuredOutputsParams(json=_text({"type": "object"} if schema is None else schema))
        case "json_object" if given.schema is not None:
            return StructuredOutputsParams(json=_text(given.schema))
        case "json_object":
            return StructuredOutputsParams(json_object=True)
        case "structural_tag":
            named = {name: value for name, value in msgspec.to_builtins(given).items() if value is not None}
            return StructuredOutputsParams(structural_tag=_text(named))
    return None


_FIELDS = {
    "text": (set(), set()),
    "json_object": (set(), {"schema"}),
    "json_schema": ({"json_schema"}, set()),
    "structural_tag": (set(), {"structures", "triggers", "format"}),
}  # by type: (required fields, optional fields)


def _check_fields(given: ResponseFormat) -> None:
    needed, allowed = _FIELDS[given.type]
    named = {name for name in given.__struct_fields__ if name != "type" and getattr(given, name) is not None}
    if missing := needed - named:
        raise InvalidRequest(f"response_format of type {given.type!r} needs {missing.pop()}", "response_format")
    if more := named - needed - allowed:
        raise InvalidRequest(
            f"response_format of type {given.type!r} has {min(more)}, which belongs to another type", "response_format"
        )


def _text(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()
