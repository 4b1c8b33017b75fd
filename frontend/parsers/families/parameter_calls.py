"""Formats whose calls have their arguments one by one, or as an object with marks instead of quotes."""

import re
from dataclasses import replace

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

HY_V3 = ToolFormat(  # Hunyuan 3
    "hy_v3",
    {
        CONTENT: Text("content", {"<tool_calls:opensource>": "open"}),
        "open": Skip({"<tool_call:opensource>": "name"}, FAIL),
        "name": Header((HeaderEnd("<tool_sep:opensource>", NAME, "begin"),)),
        "begin": Skip({"<arg_key:opensource>": "key", "</tool_call:opensource>": "close"}, "close"),
        "key": Key("</arg_key:opensource>", "gap"),
        "gap": Skip({"<arg_value:opensource>": "value"}, CONTENT),
        "value": Value("</arg_value:opensource>", "begin"),
        "close": Skip({"<tool_call:opensource>": "name", "</tool_calls:opensource>": CONTENT}, CONTENT, ends_call=True),
    },
    CallForm(
        *("<tool_call:opensource>{name}<tool_sep:opensource>\n", "</tool_call:opensource>\n"),
        "<tool_calls:opensource>",
        before="<tool_calls:opensource>\n",
        after="</tool_calls:opensource>",
        parameter_begin="<arg_key:opensource>{key}</arg_key:opensource>\n<arg_value:opensource>",
        parameter_end="</arg_value:opensource>\n",
        plain_text=True,
    ),
)


def _invocations(name: str, begin: str, end: str, mark: str, keys: Key, form: CallForm) -> ToolFormat:
    """A format with invocations between two tags; `mark`: the beginning of the other tags' names."""
    close = f"</{mark}invoke>"
    states: dict[str, State] = {
        CONTENT: Text("content", {begin: "open"}),
        "open": Skip({f'<{mark}invoke name="': "name"}, FAIL),
        "name": Header((HeaderEnd('">', NAME, "begin"),)),
        "begin": Skip({f'<{mark}parameter name="': "key", close: "close"}, "close"),
        "key": keys,
        "value": Value(f"</{mark}parameter>", "begin"),
        "text": Value(f"</{mark}parameter>", "begin", kind="text"),
        "other": Value(f"</{mark}parameter>", "begin", kind="other"),
        "close": Skip({f'<{mark}invoke name="': "name", end: "between"}, "between", ends_call=True),
        "between": Skip({begin: "open"}, CONTENT),
    }
    whole = replace(
        form,
        before=f"{begin}\n",
        after=f"\n{end}",
        parameter_end=f"</{mark}parameter>\n",
        plain_text=True,
    )
    return ToolFormat(name, states, whole)


MINIMAX_M2 = _invocations(
    *("minimax_m2", "<minimax:tool_call>", "</minimax:tool_call>", ""),
    Key('">', "value"),
    CallForm(
        *('<invoke name="{name}">\n', "</invoke>", "<minimax:tool_call>", "\n"),
        parameter_begin='<parameter name="{key}">',
    ),
)


def _dsml(name: str, tag: str) -> ToolFormat:
    """Each parameter says itself whether it is text."""
    return _invocations(
        *(name, f"<｜DSML｜{tag}>", f"</｜DSML｜{tag}>", "｜DSML｜"),
        Key('" string="true">', "text", {'" string="false">': "other"}),
        CallForm(
            *('<｜DSML｜invoke name="{name}">\n', "</｜DSML｜invoke>", f"<｜DSML｜{tag}>", "\n"),
            parameter_begin='<｜DSML｜parameter name="{key}" string="false">',
            text_begin='<｜DSML｜parameter name="{key}" string="true">',
        ),
    )


DEEPSEEK_V32 = _dsml("deepseek_v32", "function_calls")
DEEPSEEK_V4 = _dsml("deepseek_v4", "tool_calls")

MINICPM5 = ToolFormat(
    "minicpm5",
    {
        CONTENT: Text("content", {'<function name="': "name"}),
        "name": Header((HeaderEnd('">', NAME, "begin"),)),
        "begin": Skip({'<param name="': "key", "</function>": "between"}, "between"),
        "key": Key('">', "kind"),
        "kind": Skip({"<![CDATA[": "text"}, "value", skips_space=False),
        "text": Value("]]>", "end", kind="text"),
        "end": Skip({"</param>": "begin"}, "begin"),
        "value": Value("</param>", "begin"),
        "between": Skip({'<function name="': "name"}, CONTENT, ends_call=True),
    },
    CallForm(
        *('<function name="{name}">', "</function>", '<function name="', "\n"),
        parameter_begin='<param name="{key}">',
        parameter_end="</param>",
        plain_text=True,
        text_begin='<param name="{key}"><![CDATA[',
        text_end="]]></param>",
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
