"""Chooses the formats of a model's outputs, by name or by patterns in its chat template."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.plugins import PluginKind, load_plugins

from .channel_forms import ChannelForm
from .families.channels import FUNCTIONARY_V32, HARMONY, MUSE, SOLAR_OPEN
from .families.json_calls import (
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    FUNCTION_TAG,
    GIGACHAT3,
    GRANITE_20B,
    HERMES,
    INTERNLM,
    KIMI_K2,
    LLAMA3_JSON,
    LONGCAT,
    MINIMAX,
    MISTRAL,
)
from .families.list_calls import (
    APERTUS,
    COHERE,
    GRANITE,
    JAMBA,
    LFM2,
    MISTRAL_V3,
    NEMOTRON,
    OLMO3,
    PHI4_MINI,
    PYTHONIC,
    XLAM,
)
from .families.parameter_calls import (
    DEEPSEEK_V4,
    DEEPSEEK_V32,
    FUNCTION_GEMMA,
    GEMMA4,
    GLM45,
    HY_V3,
    MINICPM5,
    MINIMAX_M2,
    QWEN3_CODER,
    SEED_OSS,
)
from .families.reasoning import (
    REASONING_STEPS,
    THINK,
    THINK_IN_BRACKETS,
    THINK_OF_APERTUS,
    THINK_OF_COHERE,
    THINK_OF_HY,
    THINK_OF_LONGCAT,
    THINK_OF_SEED,
    THINK_THEN_ANSWER,
    THINK_THEN_RESPONSE,
    THOUGHT_CHANNEL,
    THOUGHT_PROCESS,
)
from .formats import ReasoningFormat, ToolFormat

AUTO, NONE = "auto", "none"
Named = TypeVar("Named")

ALL_TOOL_FORMATS = (
    *(HERMES, LLAMA3_JSON, MISTRAL, MISTRAL_V3, PYTHONIC, OLMO3, LFM2, QWEN3_CODER, SEED_OSS, FUNCTION_TAG, GLM45),
    *(MINIMAX_M2, DEEPSEEK_V3, DEEPSEEK_V31, KIMI_K2, GRANITE, PHI4_MINI, NEMOTRON, JAMBA, COHERE, HARMONY),
    *(GEMMA4, FUNCTION_GEMMA, GIGACHAT3, SOLAR_OPEN, DEEPSEEK_V32, DEEPSEEK_V4, HY_V3, APERTUS, MINIMAX, MINICPM5),
    *(FUNCTIONARY_V32, MUSE, LONGCAT, INTERNLM, GRANITE_20B, XLAM),
)
ALL_REASONING_FORMATS = (
    *(THINK, THINK_IN_BRACKETS, THOUGHT_CHANNEL, THINK_OF_SEED, THINK_OF_COHERE, REASONING_STEPS),
    *(THINK_OF_HY, THINK_OF_APERTUS, THINK_OF_LONGCAT, THINK_THEN_RESPONSE, THINK_THEN_ANSWER, THOUGHT_PROCESS),
)

# The first pattern that matches the template counts (None: an unknown format). Several formats have <tool_call>; more
# specific ones come first.
_TOOL_MARKS: Sequence[tuple[str, ToolFormat | None]] = (
    (r"<\|channel\|>", HARMONY),
    (r"<\|tool_call:begin\|>", SOLAR_OPEN),
    (r">>>\$\{recipient\}", FUNCTIONARY_V32),
    ("<atem:function_calls>", MUSE),
    (r"<\|tool_call>", GEMMA4),
    ("(?s)｜DSML｜.*function_calls>", DEEPSEEK_V32),
    ("｜DSML｜", DEEPSEEK_V4),
    (r"<tool_sep(\{\}|:opensource)>", HY_V3),
    (r"<\|tools_prefix\|>", APERTUS),
    (r'<function name="[^<]*<param name="', MINICPM5),
    ("<start_function_call>", FUNCTION_GEMMA),
    ("(?s)<｜tool▁calls▁begin｜>.*```json", DEEPSEEK_V3),
    ("<｜tool▁calls▁begin｜>", DEEPSEEK_V31),
    (r"<\|tool_calls_section_begin\|>", KIMI_K2),
    ("<minimax:tool_call>", MINIMAX_M2),
    ("<seed:tool_call>", SEED_OSS),
    ("<parameter=", QWEN3_CODER),
    ("<function=", FUNCTION_TAG),
    ("<arg_key>", GLM45),
    (r"\[ARGS\]", MISTRAL),
    (r"\[TOOL_CALLS\]", MISTRAL_V3),
    ("<function_calls>", OLMO3),
    (r"<\|action_start\|><\|plugin\|>", INTERNLM),
    ("<function_call>", GRANITE_20B),
    (r"calls in a single JSON array: \n\n\[\{\"name\": \"tool_call_name\"", XLAM),
    (r"<\|python_start\|>|func_name1\(params_name1=", PYTHONIC),
    ("functools", PHI4_MINI),
    (r"<\|tool_call\|>", GRANITE),
    (r"<\|function_call\|>", GIGACHAT3),
    ("<TOOLCALL>", NEMOTRON),
    (r"<tool_calls>\[", JAMBA),
    (r'<tool_calls>(\n|\\n)\{"name": <tool-name>', MINIMAX),
    (r"<\|START_ACTION\|>", COHERE),
    (r"<\|tool_call_start\|>|<\|tool_list_start\|>|List of tools: \[", LFM2),
    ("<longcat_arg_key>", None),  # of newer models
    ("<longcat_tool_call>", LONGCAT),
    ("<mm:think>", None),  # MiniMax-M3: its <tool_call> contains XML
    ("<tool_call>", HERMES),
    (r'<\|python_tag\|>|"name": function name, "parameters"', LLAMA3_JSON),
)
_REASONING_MARKS: Sequence[tuple[str, ReasoningFormat]] = (
    ("(?s)Here is my thought process:.*Here is my response:", THOUGHT_PROCESS),
    ("(?s)</think>.*<response>", THINK_THEN_RESPONSE),
    ("(?s)</think>.*<answer>", THINK_THEN_ANSWER),
    ("</think>", THINK),
    (r"\[THINK\]", THINK_IN_BRACKETS),
    (r"<\|channel>", THOUGHT_CHANNEL),
    ("</seed:think>", THINK_OF_SEED),
    (r"<\|END_THINKING\|>", THINK_OF_COHERE),
    (r"\[BEGIN FINAL RESPONSE\]", REASONING_STEPS),
    (r"</think(\{\}|:opensource)>", THINK_OF_HY),
    (r"<\|inner_suffix\|>", THINK_OF_APERTUS),
    ("</longcat_think>", THINK_OF_LONGCAT),
)

# vLLM's names for these formats.
_TOOL_NAMES: Mapping[str, ToolFormat] = {each.name: each for each in ALL_TOOL_FORMATS} | {
    "cohere_command3": COHERE,
    "ernie45": HERMES,
    "glm47": GLM45,
    "granite4": HERMES,
    "hunyuan_a13b": JAMBA,
    "ling3": GLM45,
    "llama4_json": LLAMA3_JSON,
    "llama4_pythonic": PYTHONIC,
    "mimo": QWEN3_CODER,
    "poolside_v1": GLM45,
    "qwen3_json": HERMES,
    "qwen3_xml": QWEN3_CODER,
    "step3p5": QWEN3_CODER,
}
_CHANNEL_NAMES = {"openai_gptoss": HARMONY, "solar_open": SOLAR_OPEN}  # calls and reasoning are one format
_THINK_NAMES = (
    *("deepseek_r1", "deepseek_v3", "deepseek_v4", "glm45", "glm47", "holo2", "kimi_k2", "ling3", "mimo", "minicpmv"),
    *("minimax_m2", "nemotron_v3", "olmo3", "poolside_v1", "qwen3", "step3", "step3p5"),
)
_REASONING_NAMES: Mapping[str, ReasoningFormat] = (
    dict.fromkeys(_THINK_NAMES, THINK)
    | {each.name: each for each in ALL_REASONING_FORMATS}
    | {"cohere_command3": THINK_OF_COHERE}
)


@dataclass(frozen=True, slots=True)
class ModelFormats:
    """The formats of a model's tool calls and reasoning; None if it has none or an unknown one."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None

    @property
    def channels(self) -> ChannelForm | None:
        """The form of a model that writes in channels: one state table parses both, so it is needed without tools."""
        return self.tools.form if self.tools is not None and isinstance(self.tools.form, ChannelForm) else None

    @property
    def reasoning_name(self) -> str:
        if self.tools is not None and self.channels is not None and self.channels.reasoning:
            return self.tools.name
        return NONE if self.reasoning is None else self.reasoning.name


def model_formats(templates: Iterable[str], tools: str = AUTO, reasoning: str = AUTO) -> ModelFormats:
    """`tools` and `reasoning`: name of a built-in format or of a plugin, auto, or none.

    Raises ConfigError for an unknown name.
    """
    source = "\n".join(templates)
    if reasoning in _CHANNEL_NAMES:
        tools, reasoning = _CHANNEL_NAMES[reasoning].name, NONE
    kind = PluginKind.TOOL_PARSER
    tool_format = _named("--tool-call-parser", tools, _TOOL_NAMES, kind, ToolFormat) or _found(
        source, tools, _TOOL_MARKS
    )
    kind = PluginKind.REASONING_PARSER
    named = _named("--reasoning-parser", reasoning, _REASONING_NAMES, kind, ReasoningFormat)
    if tool_format is not None and isinstance(tool_format.form, ChannelForm):
        return ModelFormats(tool_format)
    return ModelFormats(tool_format, named or _found(source, reasoning, _REASONING_MARKS))


def _named(flag: str, name: str, known: Mapping[str, Named], kind: PluginKind, expected: type[Named]) -> Named | None:
    if name in (AUTO, NONE):
        return None
    if name not in known:
        if found := load_plugins(kind, (name,), expected):
            return found[name]
        raise ConfigError(f"{flag} is {name!r}; it must be {AUTO}, {NONE} or one of {', '.join(sorted(known))}")
    return known[name]


def _found(source: str, name: str, marks: Sequence[tuple[str, Named | None]]) -> Named | None:
    if name != AUTO:
        return None
    return next((found for pattern, found in marks if re.search(pattern, source)), None)
