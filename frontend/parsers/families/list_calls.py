"""Formats whose calls are members of one list, of JSON or in Python's syntax, mostly between two tags."""

import re
from dataclasses import replace

from ..call_forms import CallForm
from ..formats import ToolFormat
from ..readers.states import (
    CONTENT,
    FAIL,
    Header,
    HeaderEnd,
    JsonArguments,
    JsonCall,
    PythonCalls,
    Skip,
    State,
    Text,
)
from .json_calls import MISTRAL_STATES


def _object_in_list(begin: str, end: str = "") -> CallForm:
    return CallForm('{"name": {json}, "arguments": ', "}", f"{begin}[", ", ", f"{begin}[", f"]{end}")


MISTRAL_V3 = ToolFormat("mistral_v3", MISTRAL_STATES, _object_in_list("[TOOL_CALLS]"))  # tokenizers 3 to 10


def _json_list(name: str, *begins: str, end: str = "", form: CallForm | None = None) -> ToolFormat:
    """A format with a JSON list of calls after a tag."""
    states: dict[str, State] = {
        CONTENT: Text("content", dict.fromkeys(begins, "list")),
        "list": Skip({"[": "call"}, FAIL),
        "call": JsonCall("more"),
        "more": Skip({",": "call", "]": "end"}, CONTENT),
        "end": Skip({end: CONTENT} if end else {}, CONTENT),
    }
    return ToolFormat(name, states, form or _object_in_list(begins[0], end))


GRANITE = _json_list("granite", "<|tool_call|>", "<tool_call>")  # Granite 3
PHI4_MINI = _json_list("phi4_mini_json", "functools", "<|tool_call|>", end="<|/tool_call|>")
NEMOTRON = _json_list("nemotron_json", "<TOOLCALL>", end="</TOOLCALL>")  # Nemotron Nano 2, Llama-Nemotron 1.5
JAMBA = _json_list("jamba", "<tool_calls>", end="</tool_calls>")  # Jamba 1.5 to 1.7, HunYuan A13B, Apriel
COHERE = _json_list(  # Command R7B and A
    "cohere",
    "<|START_ACTION|>",
    end="<|END_ACTION|>",
    form=CallForm(
        '{"tool_call_id": "0", "tool_name": {json}, "parameters": ',
        "}",
        "<|START_ACTION|>[",
        ",\n    ",
        "<|START_ACTION|>[\n    ",
        "\n]<|END_ACTION|>",
    ),
)

APERTUS = ToolFormat(  # each call is an object whose only key is the tool's name
    "apertus",
    {
        CONTENT: Text("content", {"<|tools_prefix|>": "list"}),
        "list": Skip({"[": "call"}, FAIL),
        "call": Skip({"{": "quote"}, FAIL),
        "quote": Skip({'"': "name"}, FAIL),
        "name": Header((HeaderEnd('"', re.compile(r'^(?P<name>[^"\\\x00-\x1f]+)$'), "colon"),)),
        "colon": Skip({":": "arguments"}, "arguments"),
        "arguments": JsonArguments("close"),
        "close": Skip({"}": "more"}, "more"),
        "more": Skip({",": "call", "]": "end"}, CONTENT),
        "end": Skip({"<|tools_suffix|>": CONTENT}, CONTENT),
    },
    CallForm("{{json}: ", "}", "<|tools_prefix|>[", ", ", "<|tools_prefix|>[", "]<|tools_suffix|>"),
)

XLAM = ToolFormat(  # xLAM 2: calls are the whole output
    "xlam",
    {
        "start": Skip({}, CONTENT, begins={"[": "list"}, keeps_space=True),
        CONTENT: Text("content", {}),
        "list": Skip({"[": "call"}, FAIL),
        "call": JsonCall("more", is_known=True),
        "more": Skip({",": "call", "]": CONTENT}, CONTENT),
    },
    replace(_object_in_list(""), is_whole_output=True),
    start="start",
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
    CallForm(
        *("{name}(", ")", "[", ", ", "[", "]"), parameter_begin="{key}=", parameter_separator=", ", is_whole_output=True
    ),
    start="start",
)

OLMO3 = ToolFormat(
    "olmo3",
    {
        CONTENT: Text("content", {"<function_calls>": "calls"}),
        "calls": PythonCalls(CONTENT, "</function_calls>"),
    },
    CallForm(
        *("{name}(", ")", "<function_calls>", "\n", "<function_calls>", "</function_calls>"),
        parameter_begin="{key}=",
        parameter_separator=", ",
    ),
)

LFM2 = ToolFormat(
    "lfm2",
    {
        CONTENT: Text("content", {"<|tool_call_start|>": "list"}),
        "list": Skip({"[": "calls"}, FAIL),
        "calls": PythonCalls("end", "]"),
        "end": Skip({"<|tool_call_end|>": CONTENT}, CONTENT),
    },
    CallForm(
        *("{name}(", ")", "<|tool_call_start|>[", ", ", "<|tool_call_start|>[", "]<|tool_call_end|>"),
        parameter_begin="{key}=",
        parameter_separator=", ",
    ),
)
