"""The formats of a model's outputs are detected in its chat template, or named."""

from pathlib import Path

import pytest

from paged_serve.frontend.parsers.detection import ALL_REASONING_FORMATS, ALL_TOOL_FORMATS, model_formats
from paged_serve.protocol.errors import ConfigError

TEMPLATES = Path(__file__).parents[1] / "conversation" / "chat_templates"
FOUND = {
    "deepseek-r1-distill": ("deepseek_v3", "think"),
    "functionary-3.1": ("function_tag", None),
    "gpt-oss": ("openai", None),
    "granite-3.3": ("granite", "ernie45"),
    "mistral-nemo": ("mistral_v3", None),
    "qwen2.5": ("hermes", None),
    "qwen3": ("hermes", "think"),
    "qwq": ("hermes", "think"),
    "vllm-deepseekv3": ("deepseek_v3", None),
    "vllm-granite": ("granite", None),
    "vllm-granite_20b_fc": ("granite-20b-fc", None),
    "vllm-hermes": ("hermes", None),
    "vllm-internlm2_tool": ("internlm", None),
    "vllm-llama3.1_json": ("llama3_json", None),
    "vllm-llama3.2_json": ("llama3_json", None),
    "vllm-llama3.2_pythonic": ("pythonic", None),
    "vllm-llama4_json": ("llama3_json", None),
    "vllm-mistral": ("mistral_v3", None),
    "vllm-mistral_parallel": ("mistral_v3", None),
    "vllm-phi4_mini": ("phi4_mini_json", None),
    "vllm-toolace": ("pythonic", None),
    "vllm-xlam_qwen": ("xlam", None),
}


def names(*templates: str, **options: str) -> tuple[str | None, str | None]:
    found = model_formats(templates, **options)
    return found.tools and found.tools.name, found.reasoning and found.reasoning.name


def test_formats_of_published_templates_are_found():
    assert {path.stem: names(path.read_text()) for path in TEMPLATES.glob("*.jinja")} == FOUND


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("[TOOL_CALLS]name[ARGS] [THINK]", ("mistral", "mistral")),
        ("<tool_call><function=f><parameter=p>", ("qwen3_coder", None)),
        ("<tool_call>f<arg_key> <think></think>", ("glm45", "think")),
        ('<minimax:tool_call><invoke name="f"><parameter name="k"> </think>', ("minimax_m2", "think")),
        ("<|tool_calls_section_begin|>", ("kimi_k2", None)),
        ("<｜tool▁calls▁begin｜>", ("deepseek_v31", None)),
        ("<function_calls>", ("olmo3", None)),
        ("<|tool_call>call: <|channel>thought", ("gemma4", "gemma4")),
        ("<start_function_call>call:", ("functiongemma", None)),
        ("{% set a = '<seed:tool_call>' %}<function=f><parameter=p>v</seed:think>", ("seed_oss", "seed_oss")),
        ("List of tools: [ {{ '<|tool_call_start|>[' }}", ("lfm2", None)),
        ("List of tools: <|tool_list_start|>[", ("lfm2", None)),
        ("function_call='<|function_call|>'", ("gigachat3", None)),
        ("<TOOLCALL>[ </TOOLCALL> </think>", ("nemotron_json", "think")),
        ("as JSON within <tool_call></tool_call> {{ '<tool_calls>[' }} [BEGIN FINAL RESPONSE]", ("jamba", "apriel")),
        ("<|START_THINKING|><|END_THINKING|><|START_ACTION|>", ("cohere", "cohere")),
        ("{% set begin = mark ~ '<tool_call>' %}<mm:think>", (None, None)),
        ("<|think|>{{ '<|tool_calls|>' }}<|tool_call:begin|>", ("solar_open", None)),
        ("{% set mark = '｜DSML｜' %}<' + mark + 'function_calls></think>", ("deepseek_v32", "think")),
        ("{% set mark = '｜DSML｜' %}<' + mark + 'tool_calls></think>", ("deepseek_v4", "think")),
        ("'<tool_sep{}>'.format(mark) '<tool_call{}>'.format(mark) '</think{}>'.format(mark)", ("hy_v3", "hy_v3")),
        ("<|tools_prefix|><|inner_suffix|>", ("apertus", "apertus")),
        ('<tool_calls></tool_calls> tags:\\n<tool_calls>\\n{"name": <tool-name>, "arguments"', ("minimax", None)),
        ('<function name="f"><param name="p">v</param></function></think>', ("minicpm5", "think")),
        (">>>${recipient}\\n${content} <|start_header_id|>", ("functionary_v32", None)),
        ("<|start|>assistant to=self<|message|> <atem:function_calls>", ("muse", None)),
        ("<longcat_tool_call>\\n{json}</longcat_tool_call> </longcat_think>", ("longcat", "longcat")),
        ("<longcat_tool_call>f<longcat_arg_key>k</longcat_arg_key> </longcat_think>", (None, "longcat")),
        ("<tool_call></tool_call> <think></think> <response></response>", ("hermes", "ernie45")),
        ("'<tool_calls>[' '<think>' '</think>' '<answer>'", ("jamba", "hunyuan_a13b")),
        ("thoughts after 'Here is my thought process:', answer after 'Here is my response:'", (None, "granite")),
        ("{{ messages }}", (None, None)),
    ],
)
def test_a_pattern_in_the_template_determines_the_format(template, expected):
    assert names(template) == expected


def test_the_page_names_every_format():
    page = (Path(__file__).parents[3] / "docs" / "tool-calls.md").read_text()
    rows = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `") and not line.startswith("| `--")}
    assert rows == {each.name for each in (*ALL_TOOL_FORMATS, *ALL_REASONING_FORMATS)}


def test_names_take_precedence_over_patterns():
    hermes = "<tool_call> <think></think>"
    assert names(hermes, tools="glm47", reasoning="none") == ("glm45", None)
    assert names(hermes, tools="none", reasoning="deepseek_r1") == (None, "think")
    assert names(hermes, tools="hunyuan_a13b", reasoning="seed_oss") == ("jamba", "seed_oss")
    assert names("", tools="mimo", reasoning="step3p5") == ("qwen3_coder", "think")
    assert names("", tools="ernie45", reasoning="cohere_command3") == ("hermes", "cohere")
    assert names(hermes, tools="openai") == ("openai", None), "this format includes reasoning"
    assert names(hermes, reasoning="openai_gptoss") == ("openai", None)
    assert names(hermes, reasoning="solar_open") == ("solar_open", None)


@pytest.mark.parametrize(("option", "flag"), [("tools", "--tool-call-parser"), ("reasoning", "--reasoning-parser")])
def test_an_unknown_name_is_refused_with_the_known_ones(option, flag):
    with pytest.raises(ConfigError, match=f"{flag} is 'hermas'; it must be auto, none or one of"):
        model_formats([], **{option: "hermas"})
