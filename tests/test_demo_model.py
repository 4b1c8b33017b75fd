"""The shipped demo model is small, splits over four ranks, and speaks the chat format it was trained on."""

import json
import random
import re
import sys
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "paged_serve" / "demo_model"
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.fixture
def text(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    from demo_model.text import documents

    yield documents
    for name in [name for name in sys.modules if name.partition(".")[0] == "demo_model"]:
        del sys.modules[name]


def rendered(trim_blocks: bool, **variables) -> str:
    environment = ImmutableSandboxedEnvironment(trim_blocks=trim_blocks, lstrip_blocks=trim_blocks)
    return environment.from_string((FOLDER / "chat_template.jinja").read_text()).render(**variables)


def test_weights_are_at_most_8_megabytes():
    assert (FOLDER / "model.safetensors").stat().st_size <= 8_000_000


def test_heads_are_divisible_by_four():
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["num_attention_heads"] % 4 == 0
    assert config["num_key_value_heads"] % 4 == 0
    assert config["head_dim"] * config["num_attention_heads"] == config["hidden_size"]


@pytest.mark.parametrize("trim_blocks", [False, True])
def test_template_writes_a_chat_as_the_training_text_does(text, trim_blocks):
    messages = [{"role": "user", "content": "Hi"}]
    assert rendered(trim_blocks, messages=messages, add_generation_prompt=True) == text.prompt("Hi")


@pytest.mark.parametrize("trim_blocks", [False, True])
def test_template_writes_tools_calls_and_results_as_the_training_text_does(text, trim_blocks):
    call = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Rome"}}}
    messages = [
        {"role": "system", "content": "Be polite."},
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "sunny"},
    ]
    trained = [
        ("system", "Be polite.\n\nTools:\nget_weather(city)"),
        ("user", "Weather?"),
        ("assistant", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'),
        ("tool", "sunny"),
    ]
    assert rendered(trim_blocks, messages=messages, tools=[TOOL]) == text.plain(text.render(trained))


def test_training_text_never_shows_a_held_out_name_or_city(text):
    from demo_model.data.words import HELD_OUT_CITIES, HELD_OUT_NAMES

    source = text.TextSource(random.Random(7))
    seen = {word for _ in range(3000) for word in re.findall(r"[A-Z][a-z]+", text.plain(source.document()))}
    assert seen.isdisjoint(HELD_OUT_NAMES + HELD_OUT_CITIES)


def test_the_same_seed_gives_the_same_text(text):
    one, other = (text.TextSource(random.Random(3)) for _ in range(2))
    assert [one.document() for _ in range(200)] == [other.document() for _ in range(200)]
