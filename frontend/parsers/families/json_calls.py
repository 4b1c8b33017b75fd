"""Formats whose calls have their arguments as a JSON object."""

import re
from collections.abc import Mapping

from ..call_forms import CallForm
from ..formats import ToolFormat
from ..readers.states import CONTENT, FAIL, Header, HeaderEnd, JsonArguments, JsonCall, Skip, State, Text

NAME = re.compile(r"^\s*(?P<name>[^\s<>{}]+)\s*$")


def _in_tags(name: str, tag: str) -> ToolFormat:
    """Each call between two tags, as an object of its name and its arguments."""
    begin, end = f"<{tag}>", f"</{tag}>"
    states: Mapping[str, State] = {
        CONTENT: Text("content", {begin: "call"}),
        "call": JsonCall("end"),
        "end": Skip({end: "between"}, CONTENT),
        "between": Skip({begin: "call"}, CONTENT),
    }
    return ToolFormat(name, states, CallForm(f'{begin}\n{{"name": {{json}}, "arguments": ', f"}}\n{end}", begin, "\n"))


HERMES = _in_tags("hermes", "tool_call")  # Hermes 2 Pro and 3, Qwen 2.5 and 3
LONGCAT = _in_tags("longcat", "longcat_tool_call")  # LongCat-Flash; files of 2026 have other calls in these tags

GIGACHAT3 = ToolFormat(  # GigaChat 3.1; 3.0 writes calls as messages of a role of their own
    "gigachat3",
    {
        CONTENT: Text("content", {"<|function_call|>": "call"}),
        "call": JsonCall("end"),
        "end": Skip({"<|function_call|>": "call"}, CONTENT),
    },
    CallForm('<|function_call|>{"name": {json}, "arguments": ', "}", "<|function_call|>"),
)

GRANITE_20B = ToolFormat(  # granite-20b-functioncalling
    "granite-20b-fc",
    {
        CONTENT: Text("content", {"<function_call>": "call"}),
        "call": JsonCall("end", is_known=True),  # it calls "no_function" if none is of use
        "end": Skip({"<function_call>": "call"}, CONTENT),
    },
    CallForm('<function_call> {"name": {json}, "arguments": ', "}", "<function_call>"),
)

INTERNLM = ToolFormat(  # InternLM 2.5; its code interpreter is no function
    "internlm",
    {
        CONTENT: Text("content", {"<|action_start|>": "kind"}),
        "kind": Skip({"<|plugin|>": "call"}, FAIL),
        "call": JsonCall("end"),
        "end": Skip({"<|action_end|>": "between"}, CONTENT),
        "between": Skip({"<|action_start|>": "kind"}, CONTENT),
    },
    CallForm(
        *('<|action_start|><|plugin|>\n{"name": {json}, "parameters": ', "}<|action_end|>"),
        "<|action_start|><|plugin|>",
    ),
)

MINIMAX = ToolFormat(  # MiniMax-M1
    "minimax",
    {
        CONTENT: Text("content", {"<tool_calls>": "call"}),
        "call": JsonCall("end"),
        "end": Skip({"</tool_calls>": CONTENT}, CONTENT, begins={"{": "call"}),
    },
    CallForm(
        *('{"name": {json}, "arguments": ', "}", "<tool_calls>", "\n"),
        before="<tool_calls>\n",
        after="\n</tool_calls>",
    ),
)

LLAMA3_JSON = ToolFormat(  # Llama 3.1 to 3.3: calls are the whole output
    "llama3_json",
    {
        "start": Skip({"<|python_tag|>": "call"}, CONTENT, begins={"{": "call"}, keeps_space=True),
        CONTENT: Text("content", {"<|python_tag|>": "call"}),
        "call": JsonCall("end", is_known=True),
        "end": Skip({";": "call"}, CONTENT),
    },
    CallForm('{"name": {json}, "parameters": ', "}", '{"name": ', "; ", is_whole_output=True),
    start="start",
)

MISTRAL_STATES: Mapping[str, State] = {
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
}
MISTRAL = ToolFormat("mistral", MISTRAL_STATES, CallForm("[TOOL_CALLS]{name}[ARGS]", "", "[TOOL_CALLS]"))

FUNCTION_TAG = ToolFormat(  # Functionary 3.1, Llama's custom tools
    "function_tag",
    {
        CONTENT: Text("content", {"<function=": "name"}),
        "name": Header((HeaderEnd(">", NAME, "arguments"),)),
        "arguments": JsonArguments("end"),
        "end": Skip({"</function>": "between"}, CONTENT),
        "between": Skip({"<function=": "name"}, CONTENT),
    },
    CallForm("<function={name}>", "</function>", "<function="),
)

_FUNCTION = re.compile(r"^\s*function\s*$")
_DEEPSEEK: Mapping[str, State] = {
    CONTENT: Text("content", {"<｜tool▁calls▁begin｜>": "calls", "<｜tool▁call▁begin｜>": "header"}),
    "calls": Skip({"<｜tool▁call▁begin｜>": "header", "<｜tool▁calls▁end｜>": CONTENT}, CONTENT),
    "header": Header((HeaderEnd("<｜tool▁sep｜>", _FUNCTION, "name"), HeaderEnd("<｜tool▁sep｜>", NAME, "arguments"))),
    "name": Header((HeaderEnd("```json", NAME, "arguments"),)),
    "arguments": JsonArguments("end"),
    "end": Skip({"```": "end", "<｜tool▁call▁end｜>": "calls"}, CONTENT),
}
_DEEPSEEK_CALLS = ("<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
DEEPSEEK_V3 = ToolFormat(  # and R1
    "deepseek_v3",
    _DEEPSEEK,
    CallForm(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n", "\n```<｜tool▁call▁end｜>", *_DEEPSEEK_CALLS
    ),
)
DEEPSEEK_V31 = ToolFormat(
    "deepseek_v31",
    _DEEPSEEK,
    CallForm("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>", "<｜tool▁call▁end｜>", *_DEEPSEEK_CALLS),
)

_KIMI_NAME = re.compile(r"^\s*(?P<id>(?:functions\.)?(?P<name>[^\s<>]+?)(?::\d+)?)\s*$")
KIMI_K2 = ToolFormat(
    "kimi_k2",
    {
        CONTENT: Text("content", {"<|tool_calls_section_begin|>": "calls", "<|tool_call_begin|>": "header"}),
        "calls": Skip({"<|tool_call_begin|>": "header", "<|tool_calls_section_end|>": CONTENT}, CONTENT),
        "header": Header((HeaderEnd("<|tool_call_argument_begin|>", _KIMI_NAME, "arguments"),)),
        "arguments": JsonArguments("end"),
        "end": Skip({"<|tool_call_end|>": "calls"}, CONTENT),
    },
    CallForm(
        "<|tool_call_begin|>functions.{name}:",
        "<|tool_call_end|>",
        "<|tool_calls_section_begin|>",
        before="<|tool_calls_section_begin|>",
        after="<|tool_calls_section_end|>",
        id_pattern="[0-9]{1,3}",
        behind_id="<|tool_call_argument_begin|>",
    ),
)
