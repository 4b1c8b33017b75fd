"""Decides how the outputs of a chat are parsed, once per request, from the model's formats and the prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.structured_outputs import Grammar

from ..text.tokenizer import Tokenizer
from .detection import ModelFormats
from .formats import ReasoningFormat, ToolFormat
from .output_parser import OutputParser
from .readers.collector import Tools
from .readers.states import CONTENT, Format, Header, PythonCalls, Skip, State, Text, Value


@dataclass(frozen=True, slots=True)
class OutputReading:
    """How the outputs of a request are parsed."""

    format: Format
    tools: Tools
    begins_in_reasoning: bool = False  # the prompt ends within reasoning
    reasoning_begin: str = ""  # the tags of reasoning; "" if there are none, or if the prompt ends the reasoning
    reasoning_end: str = ""
    reasoning_calls: frozenset[str] = frozenset()  # the tags of calls that end reasoning, too
    custom_tools: frozenset[str] = frozenset()  # the tools that replace custom tools

    def parser(self) -> OutputParser:
        return OutputParser(self.format, self.tools)

    def of_form(self) -> "OutputReading":
        """The reading of an answer with a required form, which begins right after the reasoning, be it with white
        space."""
        states = dict(self.format.states)
        if isinstance(after := states.get(AFTER_REASONING), Skip):
            states[AFTER_REASONING] = replace(after, keeps_space=True)
        return replace(self, format=replace(self.format, states=states))

    def behind_reasoning(self, grammar: Grammar, tokenizer: Tokenizer) -> Grammar:
        """`grammar` preceded by unconstrained reasoning. Raises InvalidRequest if its end tag is not a single token."""
        if not self.reasoning_end:
            return grammar
        begin, end = tokenizer.token_id(self.reasoning_begin), tokenizer.token_id(self.reasoning_end)
        if end is not None and self.begins_in_reasoning:
            return msgspec.structs.replace(grammar, after=(end,))
        if end is not None and begin is not None:
            return msgspec.structs.replace(grammar, after=(end,), opens=(begin,))
        if not self.begins_in_reasoning:
            return grammar  # the answer has no reasoning then
        raise InvalidRequest(
            f"the prompt ends within reasoning whose end cannot be detected: {self.reasoning_end} is not a single "
            "token of this model. Switch reasoning off, for example with reasoning_effort 'none'"
        )

    def tag_tokens(self, tokenizer: Tokenizer) -> frozenset[int]:
        """The tokens that are tags, if they are special or if their text of other tokens is not a tag."""
        spellings = tokenizer.special_spellings
        special = frozenset(spellings[tag] for tag in self.tags() if tag in spellings)
        own = self.format.tag_tokens | self.reasoning_calls
        return special | {token for tag in own if (token := tokenizer.token_id(tag)) is not None}

    def tags(self) -> set[str]:
        """The texts that the parser needs in an output, even if they are special tokens."""
        return _tags(self.format) | {self.reasoning_begin, self.reasoning_end} - {""} | _IN_HEADERS | _IN_TAGS


AFTER_REASONING = "after reasoning"
_IN_HEADERS = {"<|constrain|>", "[CALL_ID]", "<|tool_call:name|>"}
_IN_TAGS = {"｜DSML｜"}  # parts of tags that are tokens of their own


def output_reading(
    formats: ModelFormats,
    tokenizer: Tokenizer,
    tools: Sequence[tuple[str, Mapping[str, Any] | None]],
    prompt_end: str,
    continued: str = "",
) -> OutputReading | None:
    """`tools`: the tools that the output may call, with their parameters' schemas; `continued`: the text of the message
    that the output continues. None if all text is content."""
    tool_format = formats.tools if tools else _without_tools(formats.tools)
    reasoning, end = formats.reasoning, prompt_end.rstrip()
    is_open = has_ended = False
    if reasoning is not None:
        begins = continued.lstrip().startswith(reasoning.begin)
        has_ended = end.endswith(reasoning.end) or reasoning.end in continued
        is_open = end.endswith(reasoning.begin) or (begins and not has_ended)
    calls = _call_tokens(tool_format, tokenizer) if reasoning is not None and not has_ended else frozenset[str]()
    form = output_format(tool_format, reasoning, is_open=is_open, calls=calls)
    if form is None:
        return None
    form = replace(form, tag_tokens=_tag_tokens(formats, form, tokenizer))
    reads_values = any(isinstance(state, Value | PythonCalls) for state in form.states.values())
    schemas = {name: (schema or {}) if reads_values else {} for name, schema in tools}
    if reasoning is None or has_ended:
        return OutputReading(form, schemas)
    return OutputReading(form, schemas, is_open, reasoning.begin, reasoning.end, calls)


def _call_tokens(tools: ToolFormat | None, tokenizer: Tokenizer) -> frozenset[str]:
    """The tags that begin calls and are single tokens. Some models begin a call without an end of their reasoning."""
    content = tools.states[CONTENT] if tools else None
    tags = content.tags if isinstance(content, Text) else {}
    return frozenset(tag for tag in tags if tokenizer.token_id(tag) is not None)


def _without_tools(written: ToolFormat | None) -> ToolFormat | None:
    if written is None or written.states_without_tools is None:
        return None
    return replace(written, states=written.states_without_tools)


def _tag_tokens(formats: ModelFormats, form: Format, tokenizer: Tokenizer) -> frozenset[str]:
    """The tags of reasoning and of channels that are single tokens. Grammars and budgets go by these tokens, and a text
    that quotes a tag, as a question about it makes likely, has other tokens. Tags of calls count in any tokens: an
    untrained model may write them so, and what is no call stays content."""
    tags = _tags(form) if formats.channels is not None and formats.channels.reasoning else set[str]()
    if formats.reasoning is not None:
        tags |= {formats.reasoning.begin, formats.reasoning.end, *formats.reasoning.around_answer}
    return frozenset(tag for tag in tags if tokenizer.token_id(tag) is not None)


def _tags(form: Format) -> set[str]:
    """The texts that lead from one state to another."""
    states = form.states.values()
    return {tag for state in states for tag in (*getattr(state, "tags", ()), *_header_ends(state))}


def _header_ends(state: State) -> list[str]:
    return [end.tag for end in state.ends] if isinstance(state, Header) else []


def output_format(
    tools: ToolFormat | None,
    reasoning: ReasoningFormat | None,
    *,
    is_open: bool = False,
    calls: frozenset[str] = frozenset(),
) -> Format | None:
    """One table for reasoning and calls; None if all text is content. `is_open`: the prompt ends in reasoning; `calls`:
    tags of calls that end it, if tokens of their own write them."""
    if tools is None and reasoning is None:
        return None
    states: dict[str, State] = dict(tools.states) if tools else {CONTENT: Text("content")}
    start = tools.start if tools else CONTENT
    if reasoning is None:
        return Format(states, start)
    if isinstance(content := states[CONTENT], Text) and reasoning.around_answer:
        states[CONTENT] = replace(content, tags={**content.tags, **dict.fromkeys(reasoning.around_answer, CONTENT)})
    begun = "reasoning"
    if reasoning.label:
        begun = "label"
        states[begun] = Skip({reasoning.label: "reasoning"}, "reasoning")
    content = states[CONTENT]
    begun_calls = {tag: to for tag, to in content.tags.items() if tag in calls} if isinstance(content, Text) else {}
    states |= {
        "in reasoning": Skip({reasoning.begin: begun}, begun),
        "before reasoning": Skip({reasoning.begin: begun}, start, keeps_space=True),
        "reasoning": Text("reasoning", {reasoning.end: AFTER_REASONING}, calls=begun_calls),
        AFTER_REASONING: Skip({}, start),
    }
    return Format(states, "in reasoning" if is_open else "before reasoning")
