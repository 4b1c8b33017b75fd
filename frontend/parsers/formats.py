"""How models write calls of tools and reasoning: a table of states each. Names are vLLM's, where it has the format."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .readers.states import (
    CONTENT,
    FAIL,
    Format,
    Header,
    HeaderEnd,
    JsonArguments,
    JsonCall,
    Key,
    PythonCalls,
    Skip,
    State,
    Text,
    Value,
)

_NAME = re.compile(r"^\s*(?P<name>[^\s<>{}]+)\s*$")


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """`states` have a content state that leads to the others. Outputs begin with `start`."""

    name: str
    states: Mapping[str, State]
    start: str = CONTENT


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning stands between two tags, at the beginning of an output."""

    name: str
    begin: str
    end: str


HERMES = ToolFormat(  # Hermes 2 Pro and 3, Qwen 2.5 and 3
    "hermes",
    {
        CONTENT: Text("content", {"<tool_call>": "call"}),
        "call": JsonCall("end"),
        "end": Skip({"</tool_call>": "between"}, CONTENT),
        "between": Skip({"<tool_call>": "call"}, CONTENT),
    },
)

LLAMA3_JSON = ToolFormat(  # Llama 3.1 to 3.3: calls are the whole output
    "llama3_json",
    {
        "start": Skip({"<|python_tag|>": "call"}, CONTENT, begins={"{": "call"}, keeps_space=True),
        CONTENT: Text("content", {"<|python_tag|>": "call"}),
        "call": JsonCall("end", is_known=True),
        "end": Skip({";": "call"}, CONTENT),
    },
    start="start",
)

MISTRAL = ToolFormat(  # a list of objects, or since its eleventh tokenizer a name and arguments
    "mistral",
    {
        CONTENT: Text("content", {"[TOOL_CALLS]": "kind"}),
        "kind": Skip({"[": "call"}, "name"),
        "call": JsonCall("more"),
        "more": Skip({",": "call", "]": CONTENT}, CONTENT),
        "name": Header(
            (
                HeaderEnd(
                    "[ARGS]",
                    re.compile(r"^\s*(?P<name>[^\s\[\]{}]+)(\[CALL_ID\](?P<id>[^\s\[\]]+))?\s*$"),
                    "arguments",
                ),
            )
        ),
        "arguments": JsonArguments("end"),
        "end": Skip({"[TOOL_CALLS]": "kind"}, CONTENT),
    },
)

PYTHONIC = ToolFormat(  # Llama 3.2 and 4, ToolACE
    "pythonic",
    {
        "start": Skip({"<|python_start|>": "list"}, CONTENT, begins={"[": "list"}, keeps_space=True),
        CONTENT: Text("content", {"<|python_start|>": "list"}),
        "list": Skip({"[": "calls"}, FAIL),
        "calls": PythonCalls("end", "]"),
        "end": Skip({"<|python_end|>": CONTENT}, CONTENT),
    },
    start="start",
)

OLMO3 = ToolFormat(
    "olmo3",
    {
        CONTENT: Text("content", {"<function_calls>": "calls"}),
        "calls": PythonCalls(CONTENT, "</function_calls>"),
    },
)

QWEN3_CODER = ToolFormat(
    "qwen3_coder",
    {
        CONTENT: Text("content", {"<tool_call>": "open", "<function=": "name"}),
        "open": Skip({"<function=": "name"}, FAIL),
        "name": Header((HeaderEnd(">", _NAME, "begin"),)),
        "begin": Skip({"<parameter=": "key", "</function>": "close"}, "close"),
        "key": Key(">", "value"),
        "value": Value("</parameter>", "begin", trims=True),
        "close": Skip({"</tool_call>": "between"}, "between", ends_call=True),
        "between": Skip({"<tool_call>": "open", "<function=": "name"}, CONTENT),
    },
)

FUNCTION_TAG = ToolFormat(  # Functionary 3.1, Llama's custom tools
    "function_tag",
    {
        CONTENT: Text("content", {"<function=": "name"}),
        "name": Header((HeaderEnd(">", _NAME, "arguments"),)),
        "arguments": JsonArguments("end"),
        "end": Skip({"</function>": "between"}, CONTENT),
        "between": Skip({"<function=": "name"}, CONTENT),
    },
)

GLM45 = ToolFormat(  # GLM 4.5 to 4.7
    "glm45",
    {
        CONTENT: Text("content", {"<tool_call>": "name"}),
        "name": Header((HeaderEnd("<arg_key>", _NAME, "key"), HeaderEnd("</tool_call>", _NAME, "between"))),
        "key": Key("</arg_key>", "gap"),
        "gap": Skip({"<arg_value>": "value"}, CONTENT),
        "value": Value("</arg_value>", "more"),
        "more": Skip({"<arg_key>": "key", "</tool_call>": "between"}, CONTENT),
        "between": Skip({"<tool_call>": "name"}, CONTENT, ends_call=True),
    },
)

_FUNCTION = re.compile(r"^\s*function\s*$")
DEEPSEEK = ToolFormat(  # V3 and R1 write "function", the name and a fenced block; V3.1 the name and the arguments
    "deepseek",
    {
        CONTENT: Text("content", {"<｜tool▁calls▁begin｜>": "calls", "<｜tool▁call▁begin｜>": "header"}),
        "calls": Skip({"<｜tool▁call▁begin｜>": "header", "<｜tool▁calls▁end｜>": CONTENT}, CONTENT),
        "header": Header(
            (HeaderEnd("<｜tool▁sep｜>", _FUNCTION, "name"), HeaderEnd("<｜tool▁sep｜>", _NAME, "arguments"))
        ),
        "name": Header((HeaderEnd("```json", _NAME, "arguments"),)),
        "arguments": JsonArguments("end"),
        "end": Skip({"```": "end", "<｜tool▁call▁end｜>": "calls"}, CONTENT),
    },
)

_KIMI_NAME = re.compile(r"^\s*(?P<id>(?:functions\.)?(?P<name>[^\s:<>]+?)(?::\d+)?)\s*$")
KIMI_K2 = ToolFormat(
    "kimi_k2",
    {
        CONTENT: Text("content", {"<|tool_calls_section_begin|>": "calls", "<|tool_call_begin|>": "header"}),
        "calls": Skip({"<|tool_call_begin|>": "header", "<|tool_calls_section_end|>": CONTENT}, CONTENT),
        "header": Header((HeaderEnd("<|tool_call_argument_begin|>", _KIMI_NAME, "arguments"),)),
        "arguments": JsonArguments("end"),
        "end": Skip({"<|tool_call_end|>": "calls"}, CONTENT),
    },
)


def _json_list(name: str, *begins: str, end: str = "") -> ToolFormat:
    """A list of objects behind a tag."""
    states: dict[str, State] = {
        CONTENT: Text("content", dict.fromkeys(begins, "list")),
        "list": Skip({"[": "call"}, FAIL),
        "call": JsonCall("more"),
        "more": Skip({",": "call", "]": "end"}, CONTENT),
        "end": Skip({end: CONTENT} if end else {}, CONTENT),
    }
    return ToolFormat(name, states)


GRANITE = _json_list("granite", "<|tool_call|>", "<tool_call>")  # Granite 3
PHI4_MINI = _json_list("phi4_mini_json", "functools", "<|tool_call|>", end="<|/tool_call|>")

_ENDS = {"<|start|>": "header", "<|channel|>": "header", "<|end|>": "between", "<|return|>": "between"}
HARMONY = ToolFormat(  # gpt-oss; a message's header says its channel and, of a call, its recipient
    "openai",
    {
        "header": Header(
            (
                HeaderEnd("<|message|>", re.compile(r"to=functions\.(?P<name>[\w.-]+)"), "arguments"),
                HeaderEnd("<|message|>", re.compile(r"analysis|to="), "reasoning"),
                HeaderEnd("<|message|>", re.compile(""), CONTENT),
            )
        ),
        CONTENT: Text("content", _ENDS, may_return=False),
        "reasoning": Text("reasoning", _ENDS | {"<|call|>": "between"}),
        "arguments": JsonArguments("between"),
        "between": Text("nothing", {"<|start|>": "header", "<|channel|>": "header"}),
    },
    start="header",
)

ALL_TOOL_FORMATS = (
    *(HERMES, LLAMA3_JSON, MISTRAL, PYTHONIC, OLMO3, QWEN3_CODER, FUNCTION_TAG, GLM45, DEEPSEEK, KIMI_K2),
    *(GRANITE, PHI4_MINI, HARMONY),
)
THINK = ReasoningFormat("think", "<think>", "</think>")  # DeepSeek R1, Qwen 3, QwQ, GLM 4.5, Kimi K2 and many others
THINK_IN_BRACKETS = ReasoningFormat("mistral", "[THINK]", "[/THINK]")  # Magistral


def output_format(
    tools: ToolFormat | None, reasoning: ReasoningFormat | None, *, is_open: bool = False
) -> Format | None:
    """One table of both; None if every output is content as it stands. `is_open`: the prompt ends in reasoning."""
    if tools is None and reasoning is None:
        return None
    states: dict[str, State] = dict(tools.states) if tools else {CONTENT: Text("content")}
    start = tools.start if tools else CONTENT
    if reasoning is None:
        return Format(states, start)
    states |= {
        "in reasoning": Skip({reasoning.begin: "reasoning"}, "reasoning"),
        "before reasoning": Skip({reasoning.begin: "reasoning"}, start, keeps_space=True),
        "reasoning": Text("reasoning", {reasoning.end: "after reasoning"}),
        "after reasoning": Skip({}, start),
    }
    return Format(states, "in reasoning" if is_open else "before reasoning")
