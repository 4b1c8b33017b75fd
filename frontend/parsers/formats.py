"""The formats of tool calls and reasoning, each a table of states. Names are vLLM's for formats that it has."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from .call_forms import CallForm as CallForm  # for plugins, too
from .readers.states import (
    CONTENT,
    FAIL,
    Header,
    HeaderEnd,
    JsonArguments,
    JsonCall,
    Key,
    MarkedArguments,
    Skip,
    State,
    Text,
    Value,
)

_NAME = re.compile(r"^\s*(?P<name>[^\s<>{}]+)\s*$")


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """`states` include a content state, from which the others are reached. Outputs begin in state `start`."""

    name: str
    states: Mapping[str, State]
    form: CallForm | None  # None: a format with channels; see channel_forms.py
    start: str = CONTENT


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning is written between two tags at the beginning of an output."""

    name: str
    begin: str
    end: str
    label: str = ""  # written behind `begin`; not a part of the reasoning


HERMES = ToolFormat(  # Hermes 2 Pro and 3, Qwen 2.5 and 3
    "hermes",
    {
        CONTENT: Text("content", {"<tool_call>": "call"}),
        "call": JsonCall("end"),
        "end": Skip({"</tool_call>": "between"}, CONTENT),
        "between": Skip({"<tool_call>": "call"}, CONTENT),
    },
    CallForm('<tool_call>\n{"name": {json}, "arguments": ', "}\n</tool_call>", "<tool_call>", "\n"),
)

GIGACHAT3 = ToolFormat(  # GigaChat 3.1; 3.0 writes calls as messages of a role of their own
    "gigachat3",
    {
        CONTENT: Text("content", {"<|function_call|>": "call"}),
        "call": JsonCall("end"),
        "end": Skip({"<|function_call|>": "call"}, CONTENT),
    },
    CallForm('<|function_call|>{"name": {json}, "arguments": ', "}", "<|function_call|>"),
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


def _function_tags(name: str, begin: str, end: str, gap: str) -> ToolFormat:
    """A format with a tag for each parameter; `gap`: written around the values, and not a part of them."""
    return ToolFormat(
        name,
        {
            CONTENT: Text("content", {begin: "open", "<function=": "name"}),
            "open": Skip({"<function=": "name"}, FAIL),
            "name": Header((HeaderEnd(">", _NAME, "begin"),)),
            "begin": Skip({"<parameter=": "key", "</function>": "close"}, "close"),
            "key": Key(">", "value"),
            "value": Value("</parameter>", "begin", trims=bool(gap)),
            "close": Skip({end: "between"}, "between", ends_call=True),
            "between": Skip({begin: "open", "<function=": "name"}, CONTENT),
        },
        CallForm(
            f"{begin}\n<function={{name}}>\n",
            f"</function>\n{end}",
            begin,
            "\n",
            parameter_begin=f"<parameter={{key}}>{gap}",
            parameter_end=f"{gap}</parameter>\n",
            plain_text=True,
        ),
    )


QWEN3_CODER = _function_tags("qwen3_coder", "<tool_call>", "</tool_call>", "\n")
SEED_OSS = _function_tags("seed_oss", "<seed:tool_call>", "</seed:tool_call>", "")

FUNCTION_TAG = ToolFormat(  # Functionary 3.1, Llama's custom tools
    "function_tag",
    {
        CONTENT: Text("content", {"<function=": "name"}),
        "name": Header((HeaderEnd(">", _NAME, "arguments"),)),
        "arguments": JsonArguments("end"),
        "end": Skip({"</function>": "between"}, CONTENT),
        "between": Skip({"<function=": "name"}, CONTENT),
    },
    CallForm("<function={name}>", "</function>", "<function="),
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
    CallForm(
        "<tool_call>{name}\n",
        "</tool_call>",
        "<tool_call>",
        "\n",
        parameter_begin="<arg_key>{key}</arg_key>\n<arg_value>",
        parameter_end="</arg_value>\n",
        plain_text=True,
    ),
)

MINIMAX_M2 = ToolFormat(
    "minimax_m2",
    {
        CONTENT: Text("content", {"<minimax:tool_call>": "open"}),
        "open": Skip({'<invoke name="': "name"}, FAIL),
        "name": Header((HeaderEnd('">', _NAME, "begin"),)),
        "begin": Skip({'<parameter name="': "key", "</invoke>": "close"}, "close"),
        "key": Key('">', "value"),
        "value": Value("</parameter>", "begin"),
        "close": Skip({'<invoke name="': "name", "</minimax:tool_call>": "between"}, "between", ends_call=True),
        "between": Skip({"<minimax:tool_call>": "open"}, CONTENT),
    },
    CallForm(
        *('<invoke name="{name}">\n', "</invoke>", "<minimax:tool_call>", "\n"),
        before="<minimax:tool_call>\n",
        after="\n</minimax:tool_call>",
        parameter_begin='<parameter name="{key}">',
        parameter_end="</parameter>\n",
        plain_text=True,
    ),
)

_FUNCTION = re.compile(r"^\s*function\s*$")
_DEEPSEEK: Mapping[str, State] = {
    CONTENT: Text("content", {"<｜tool▁calls▁begin｜>": "calls", "<｜tool▁call▁begin｜>": "header"}),
    "calls": Skip({"<｜tool▁call▁begin｜>": "header", "<｜tool▁calls▁end｜>": CONTENT}, CONTENT),
    "header": Header((HeaderEnd("<｜tool▁sep｜>", _FUNCTION, "name"), HeaderEnd("<｜tool▁sep｜>", _NAME, "arguments"))),
    "name": Header((HeaderEnd("```json", _NAME, "arguments"),)),
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
        behind_number="<|tool_call_argument_begin|>",
    ),
)


def _gemma(name: str, begin: str, end: str, mark: str) -> ToolFormat:
    """A format whose keys have no quotes, and whose strings are between marks."""
    states: dict[str, State] = {
        CONTENT: Text("content", {begin: "name"}),
        "name": Header((HeaderEnd("{", re.compile(r"^\s*call:(?P<name>[^\s<>{}]+)\s*$"), "arguments"),)),
        "arguments": MarkedArguments("end", mark),
        "end": Skip({end: "between"}, CONTENT),
        "between": Skip({begin: "name"}, CONTENT),
    }
    return ToolFormat(name, states, CallForm(f"{begin}call:{{name}}", end, begin))


GEMMA4 = _gemma("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA = _gemma("functiongemma", "<start_function_call>", "<end_function_call>", "<escape>")

_ENDS = {"<|start|>": "header", "<|channel|>": "header", "<|end|>": "between", "<|return|>": "between"}
_TO_TOOL = HeaderEnd("<|message|>", re.compile(r"to=functions\.(?P<name>[^\s<>]+)"), "arguments")
_TO_NO_TOOL = (
    HeaderEnd("<|message|>", re.compile(r"analysis|to="), "reasoning"),
    HeaderEnd("<|message|>", re.compile(""), CONTENT),
)
HARMONY = ToolFormat(  # gpt-oss; the header of a message has its channel and, for a call, its recipient
    "openai",
    {
        "header": Header((_TO_TOOL, *_TO_NO_TOOL)),
        CONTENT: Text("content", _ENDS, may_return=False),
        "reasoning": Text("reasoning", _ENDS | {"<|call|>": "between"}),
        "arguments": JsonArguments("between"),
        "between": Text("nothing", {"<|start|>": "header", "<|channel|>": "header"}),
    },
    None,
    start="header",
)
# Without tools, every message that is not addressed to the user is reasoning.
HARMONY_WITHOUT_TOOLS = replace(HARMONY, states={**HARMONY.states, "header": Header(_TO_NO_TOOL)})

THINK = ReasoningFormat("think", "<think>", "</think>")  # DeepSeek R1, Qwen 3, QwQ, GLM 4.5, Kimi K2 and many others
THINK_IN_BRACKETS = ReasoningFormat("mistral", "[THINK]", "[/THINK]")  # Magistral
THOUGHT_CHANNEL = ReasoningFormat("gemma4", "<|channel>", "<channel|>", label="thought\n")  # Gemma 4
THINK_OF_SEED = ReasoningFormat("seed_oss", "<seed:think>", "</seed:think>")
THINK_OF_COHERE = ReasoningFormat("cohere", "<|START_THINKING|>", "<|END_THINKING|>")  # Command R7B and A
REASONING_STEPS = ReasoningFormat("apriel", "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]")
