"""Formats of models that write reasoning, answers and calls as messages in channels.

Without tools, every message that is not addressed to the user is reasoning, if the model writes any.
"""

import re
from collections.abc import Mapping

from ..call_forms import CallForm
from ..channel_forms import ChannelForm
from ..formats import ToolFormat
from ..readers.states import CONTENT, Header, HeaderEnd, JsonArguments, Key, Skip, State, Text, Value
from .json_calls import NAME

_ENDS = {"<|start|>": "header", "<|channel|>": "header", "<|end|>": "between", "<|return|>": "between"}
_TO_TOOL = HeaderEnd("<|message|>", re.compile(r"to=functions\.(?P<name>[^\s<>]+)"), "arguments")
_TO_NO_TOOL = (
    HeaderEnd("<|message|>", re.compile(r"analysis|to="), "reasoning"),
    HeaderEnd("<|message|>", re.compile(""), CONTENT),
)
_HARMONY: Mapping[str, State] = {
    "header": Header((_TO_TOOL, *_TO_NO_TOOL)),
    CONTENT: Text("content", _ENDS, may_return=False),
    "reasoning": Text("reasoning", _ENDS | {"<|call|>": "between"}),
    "arguments": JsonArguments("between"),
    "between": Text("nothing", {"<|start|>": "header", "<|channel|>": "header"}),
}
HARMONY = ToolFormat(  # gpt-oss; the header of a message has its channel and, for a call, its recipient
    "openai",
    _HARMONY,
    ChannelForm(
        reasoning="<|channel|>analysis<|message|>",
        end="<|end|>",
        next="<|start|>assistant",
        final="<|channel|>final<|message|>",
        call=CallForm("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>", "", "<|channel|>"),
        has_one_call=True,
    ),
    start="header",
    states_without_tools={**_HARMONY, "header": Header(_TO_NO_TOOL)},
)

_BEGINS = {"<|think|>": "reasoning", "<|content|>": CONTENT, "<|tool_calls|>": "calls"}
_ANY = re.compile("")
_MESSAGES_END = {"<|end|>": "between", "<|flush|>": "between", "<|calls|>": "between", "<|begin|>": "header"}
_CALL_BEGIN = re.compile(r"^\s*(?P<id>[^\s<>]*)<\|tool_call:name\|>(?P<name>[^\s<>{}]+)\s*$")


def _solar(begins: Mapping[str, str]) -> Mapping[str, State]:
    return {
        "start": Skip(begins, CONTENT, keeps_space=True),
        CONTENT: Text("content", _MESSAGES_END, may_return=False),
        "reasoning": Text("reasoning", _MESSAGES_END),
        "between": Text("nothing", {"<|begin|>": "header"}),
        "header": Header(tuple(HeaderEnd(tag, _ANY, state) for tag, state in begins.items())),
        "calls": Skip({"<|tool_call:begin|>": "call"}, "between"),
        "call": Header((HeaderEnd("<|tool_call:args|>", _CALL_BEGIN, "arguments"),)),
        "arguments": JsonArguments("end"),
        "end": Skip({"<|tool_call:end|>": "calls"}, "calls"),
    }


SOLAR_OPEN = ToolFormat(
    "solar_open",
    _solar(_BEGINS),
    ChannelForm(
        reasoning="<|think|>",
        end="<|end|>",
        next="<|begin|>assistant",
        final="<|content|>",
        call=CallForm(
            *("<|tool_call:begin|>", "<|tool_call:end|>", "<|tool_calls|>"),
            before="<|tool_calls|>",
            id_pattern="[a-z0-9]{10}",
            behind_id="<|tool_call:name|>{name}<|tool_call:args|>",
        ),
    ),
    start="start",
    states_without_tools=_solar(_BEGINS | {"<|tool_calls|>": "reasoning"}),
)

_TO_ALL = HeaderEnd("\n", re.compile(r"^\s*all\s*$"), CONTENT)


def _functionary(*ends: HeaderEnd) -> Mapping[str, State]:
    return {
        "header": Header(ends),
        CONTENT: Text("content", {">>>": "header"}),
        "arguments": JsonArguments("end"),
        "end": Skip({">>>": "header"}, CONTENT),
    }


FUNCTIONARY_V32 = ToolFormat(  # the prompt ends with >>>
    "functionary_v32",
    _functionary(_TO_ALL, HeaderEnd("\n", NAME, "arguments", is_known=True)),
    ChannelForm(final="all\n", call=CallForm("{name}\n", "", ">>>", ">>>")),
    start="header",
    states_without_tools=_functionary(_TO_ALL),
)


_MUSE_ENDS = {"<|eom|>": "between", "<|eot|>": "between", "<|start|>": "header"}
_TO_SELF = HeaderEnd("<|message|>", re.compile(r"to=self\s*$"), "reasoning")
_TO_USER = HeaderEnd("<|message|>", re.compile(r"to=user\s*$|^[^=]*$"), CONTENT)


def _muse(others: str) -> Mapping[str, State]:
    """`others`: the state that reads messages to others than the user and the model itself."""
    return {
        "header": Header((_TO_SELF, _TO_USER, HeaderEnd("<|message|>", _ANY, others))),
        CONTENT: Text("content", _MUSE_ENDS, may_return=False),
        "reasoning": Text("reasoning", _MUSE_ENDS),
        "calls": Skip({"<atem:function_calls>": "call"}, "between"),
        "call": Skip({'<atem:invoke name="': "name"}, "between"),
        "name": Header((HeaderEnd('">', NAME, "begin"),)),
        "begin": Skip({'<atem:parameter name="': "key", "</atem:invoke>": "close"}, "close"),
        "key": Key('">', "value"),
        "value": Value("</atem:parameter>", "begin"),
        "close": Skip({'<atem:invoke name="': "name", "</atem:function_calls>": "between"}, "between", ends_call=True),
        "between": Text("nothing", {"<|start|>": "header"}),
    }


MUSE = ToolFormat(  # the header of a message has its recipient
    "muse",
    _muse("calls"),
    ChannelForm(
        reasoning=" to=self<|message|>",
        end="<|eom|>",
        next="<|start|>assistant",
        final=" to=user<|message|>",
        call=CallForm(
            ' to={name}<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n',
            "</atem:invoke>\n</atem:function_calls>",
            " to=",
            "<|eom|><|start|>assistant",
            parameter_begin='<atem:parameter name="{key}">',
            parameter_end="</atem:parameter>\n",
            plain_text=True,
        ),
    ),
    start="header",
    states_without_tools=_muse("reasoning"),
)
