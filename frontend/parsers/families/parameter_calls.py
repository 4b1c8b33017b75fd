"""Formats whose calls have their arguments one by one, or as an object with marks instead of quotes."""

import re

from ..call_forms import CallForm
from ..formats import ToolFormat
from ..readers.states import CONTENT, FAIL, Header, HeaderEnd, Key, MarkedArguments, Skip, State, Text, Value
from .json_calls import NAME


def _function_tags(name: str, begin: str, end: str, gap: str) -> ToolFormat:
    """A format with a tag for each parameter; `gap`: written around the values, and not a part of them."""
    return ToolFormat(
        name,
        {
            CONTENT: Text("content", {begin: "open", "<function=": "name"}),
            "open": Skip({"<function=": "name"}, FAIL),
            "name": Header((HeaderEnd(">", NAME, "begin"),)),
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

GLM45 = ToolFormat(  # GLM 4.5 to 4.7
    "glm45",
    {
        CONTENT: Text("content", {"<tool_call>": "name"}),
        "name": Header((HeaderEnd("<arg_key>", NAME, "key"), HeaderEnd("</tool_call>", NAME, "between"))),
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
        "name": Header((HeaderEnd('">', NAME, "begin"),)),
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
