"""Generated outputs in each format, with their known contents, which a parser must find."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .written_json_calls import JSON_WRITERS, Call, Writer, deepseek, granite_20b_fc, mistral
from .written_parameter_calls import PARAMETER_WRITERS

TOOLS: Mapping[str, dict[str, Any]] = {
    "get_weather": {
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "units": {"enum": ["C", "F"]}}
    },
    "search": {
        "properties": {
            "query": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "filters": {"type": "object"},
            "flags": {"type": "array"},
            "exact": {"type": "boolean"},
        }
    },
    "now": {},
}


TEXTS = (
    *(
        "",
        "Paris",
        "a b",
        'say "hi"',
        "C:\\dir\\",
        "line\nbreak",
        "\n two \n",
        "é😀",
        "1",
        "true",
        "null",
        "{}",
        "[1, 2]",
    ),
    *("<b>", "</b>", "a<", "`x`", "</tool_call>", "</think>", "f(x=1)", ", ", ")", "]", "}", "'", "[/ARGS]", "```"),
)


def drawn_calls(rng: random.Random, least: int = 0) -> list[Call]:
    return [_drawn_call(rng) for _ in range(rng.randint(least, 3))]


def _drawn_call(rng: random.Random) -> Call:
    name = rng.choice(list(TOOLS))
    drawn = {
        "city": lambda: rng.choice(TEXTS),
        "days": lambda: rng.randint(-3, 1000),
        "units": lambda: rng.choice("CF"),
        "query": lambda: rng.choice(TEXTS),
        "filters": lambda: {rng.choice(TEXTS): rng.choice(TEXTS), "n": [1.5, None, {"deep": [True]}]},
        "flags": lambda: [rng.choice(TEXTS) for _ in range(rng.randint(0, 3))],
        "exact": lambda: rng.random() < 0.5,
    }
    names = list(TOOLS[name].get("properties", {}))
    return name, {key: drawn[key]() for key in names if rng.random() < 0.7}


_CHANNELS = {  # what begins reasoning and an answer, what ends an output, and what is between messages
    "openai": (
        *("<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "<|return|>"),
        "<|end|><|start|>assistant",
    ),
    "solar_open": ("<|think|>", "<|content|>", "<|flush|>", "<|end|><|begin|>assistant"),
    "muse": (" to=self<|message|>", " to=user<|message|>", "<|eot|>", "<|eom|><|start|>assistant"),
}


def _in_channels(name: str, reasoning: str, content: str, calls: str) -> str:
    think, answer, end, following = _CHANNELS[name]
    text = f"{think}{reasoning}{following}" if reasoning else ""
    return text + (f"{answer}{content}{following if calls else end}" if content else "") + calls


WRITERS: Mapping[str, Writer] = {writer.__name__: writer for writer in (*JSON_WRITERS, *PARAMETER_WRITERS)} | {
    "mistral_v3": mistral,
    "deepseek_v3": deepseek,
    "deepseek_v31": deepseek,
    "granite-20b-fc": granite_20b_fc,
}
WHOLE_OUTPUT = {"llama3_json", "pythonic", "xlam"}  # an output with calls has nothing else


@dataclass(frozen=True)
class Output:
    """A text and its contents."""

    text: str
    reasoning: str
    content: str
    calls: list[Call]


def drawn_output(name: str, rng: random.Random, *, reasons: bool) -> Output:
    calls = drawn_calls(rng)
    content = "" if calls and name in WHOLE_OUTPUT else rng.choice(["", "Let me see.", "a < b\n\nand [c] {d}"])
    reasoning = rng.choice(["", "Hm.", "First\n\nsecond <b> {"])
    written = WRITERS[name](calls, rng) if calls else ""
    if name == "functionary_v32":
        text = f"all\n{content}" + (">>>" if calls else "") if content else ""
        return Output(text + written, "", content, calls)
    if name in _CHANNELS:
        return Output(_in_channels(name, reasoning, content, written), reasoning, content, calls)
    if not reasons:
        return Output(content + written, "", content, calls)
    before = f"<think>\n{reasoning}\n</think>\n\n" if reasoning else ""
    return Output(before + content + written, reasoning, content, calls)


def drawn_pieces(text: str, rng: random.Random) -> list[str]:
    cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randint(0, 12)))
    return [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def damaged(text: str, rng: random.Random) -> str:
    """The text cut off, or with other text inserted."""
    text = text[: rng.randint(0, len(text))]
    if rng.random() < 0.6:
        at = rng.randint(0, len(text))
        inner = rng.choice(["", '"', "\\", "{", "}", "]", "\n", "<", "(", "x", text[:30], text[-30:], "</think>"])
        text = text[:at] + inner + text[at + rng.randint(0, 12) :]
    return text
