"""What a chat's outputs are read by: decided once a request, from the model's formats and the prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .detection import ModelFormats
from .formats import output_format
from .output_parser import OutputParser
from .readers.collector import Tools
from .readers.states import Format, PythonCalls, Value


@dataclass(frozen=True, slots=True)
class OutputReading:
    """For every sequence of a request."""

    format: Format
    tools: Tools
    begins_in_reasoning: bool = False  # the prompt's end has begun it
    reasoning_begin: str = ""  # tags; "" where reasoning has none of its own, or has ended within the prompt
    reasoning_end: str = ""

    def parser(self) -> OutputParser:
        return OutputParser(self.format, self.tools)

    def tags(self) -> frozenset[str]:
        """Texts that must be seen in an output even where they are special tokens."""
        found = {self.reasoning_begin, self.reasoning_end} - {""}
        for state in self.format.states.values():
            tags = getattr(state, "tags", {})
            found |= {*tags, *(end.tag for end in getattr(state, "ends", ()))}
        return frozenset(found | _IN_HEADERS)


_IN_HEADERS = {"<|constrain|>", "[CALL_ID]"}


def output_reading(
    formats: ModelFormats, tools: Sequence[tuple[str, Mapping[str, Any] | None]], prompt_end: str
) -> OutputReading | None:
    """`tools`: those that the output may call, each with its parameters' schema. None: all text is content."""
    tool_format = formats.tools if tools or formats.writes_channels else None
    reasoning, is_open = formats.reasoning, False
    if reasoning is not None:
        end = prompt_end.rstrip()
        is_open = end.endswith(reasoning.begin)
        if end.endswith(reasoning.end):
            reasoning = None
    form = output_format(tool_format, reasoning, is_open=is_open)
    if form is None:
        return None
    reads_values = any(isinstance(state, Value | PythonCalls) for state in form.states.values())
    schemas = {name: (schema or {}) if reads_values else {} for name, schema in tools}
    begin, end = ("", "") if reasoning is None else (reasoning.begin, reasoning.end)
    return OutputReading(form, schemas, is_open, begin, end)
