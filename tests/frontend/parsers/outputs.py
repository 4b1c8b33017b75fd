"""Generated outputs in each format, with their known contents, which a parser must find."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Call = tuple[str, dict[str, Any]]

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


def _json(value: object, rng: random.Random) -> str:
    return json.dumps(
        value,
        ensure_ascii=rng.random() < 0.3,
        indent=rng.choice([None, None, 2]),
        separators=rng.choice([None, (",", ":")]),
    )


def _object(call: Call, rng: random.Random, arguments: str = "arguments") -> str:
    members = [f'"name": "{call[0]}"', f'"{arguments}": {_json(call[1], rng)}']
    rng.shuffle(members)
    return "{" + ", ".join(members) + "}"


def hermes(calls: Sequence[Call], rng: random.Random) -> str:
    return "\n".join(f"<tool_call>\n{_object(call, rng)}\n</tool_call>" for call in calls)


def llama3_json(calls: Sequence[Call], rng: random.Random) -> str:
    begin = rng.choice(["", "<|python_tag|>"])
    return begin + "; ".join(_object(call, rng, "parameters") for call in calls)


def mistral(calls: Sequence[Call], rng: random.Random) -> str:
    if rng.random() < 0.5:
        return f"[TOOL_CALLS][{', '.join(_object(call, rng) for call in calls)}]"
    call_id = rng.choice(["", "[CALL_ID]a1b2c3d4e"])
    return "".join(f"[TOOL_CALLS]{name}{call_id}[ARGS]{_json(arguments, rng)}" for name, arguments in calls)


def _python(call: Call) -> str:
    return f"{call[0]}({', '.join(f'{key}={value!r}' for key, value in call[1].items())})"


def pythonic(calls: Sequence[Call], rng: random.Random) -> str:
    text = f"[{', '.join(map(_python, calls))}]"
    return rng.choice([text, f"<|python_start|>{text}<|python_end|>"])


def olmo3(calls: Sequence[Call], rng: random.Random) -> str:
    inner = "\n".join(map(_python, calls))
    return f"<function_calls>{inner}</function_calls>"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def qwen3_coder(calls: Sequence[Call], rng: random.Random) -> str:
    def written(call: Call) -> str:
        parameters = "".join(f"<parameter={key}>\n{_plain(value)}\n</parameter>\n" for key, value in call[1].items())
        return f"<tool_call>\n<function={call[0]}>\n{parameters}</function>\n</tool_call>"

    return "\n".join(map(written, calls))


def seed_oss(calls: Sequence[Call], rng: random.Random) -> str:
    def written(call: Call) -> str:
        parameters = "".join(f"<parameter={key}>{_plain(value)}</parameter>\n" for key, value in call[1].items())
        return f"<seed:tool_call>\n<function={call[0]}>\n{parameters}</function>\n</seed:tool_call>"

    return "\n".join(map(written, calls))


def lfm2(calls: Sequence[Call], rng: random.Random) -> str:
    def written(call: Call) -> str:
        """LFM2.5 writes objects as JSON within its Python."""
        pairs = ((key, json.dumps(value) if isinstance(value, dict) else repr(value)) for key, value in call[1].items())
        return f"{call[0]}({', '.join(f'{key}={value}' for key, value in pairs)})"

    return f"<|tool_call_start|>[{', '.join(map(written, calls))}]<|tool_call_end|>"


def gigachat3(calls: Sequence[Call], rng: random.Random) -> str:
    return "".join(f"<|function_call|>{_object(call, rng)}" for call in calls)


def nemotron_json(calls: Sequence[Call], rng: random.Random) -> str:
    return f"<TOOLCALL>[{', '.join(_object(call, rng) for call in calls)}]</TOOLCALL>"


def jamba(calls: Sequence[Call], rng: random.Random) -> str:
    return f"<tool_calls>[{', '.join(_object(call, rng) for call in calls)}]</tool_calls>"


def cohere(calls: Sequence[Call], rng: random.Random) -> str:
    objects = (
        f'{{"tool_call_id": "{i}", "tool_name": "{name}", "parameters": {_json(arguments, rng)}}}'
        for i, (name, arguments) in enumerate(calls)
    )
    return f"<|START_ACTION|>[\n    {f',{chr(10)}    '.join(objects)}\n]<|END_ACTION|>"


def function_tag(calls: Sequence[Call], rng: random.Random) -> str:
    return "".join(f"<function={name}>{_json(arguments, rng)}</function>" for name, arguments in calls)


def glm45(calls: Sequence[Call], rng: random.Random) -> str:
    gap = rng.choice(["", "\n"])

    def written(call: Call) -> str:
        pairs = (
            f"<arg_key>{key}</arg_key>{gap}<arg_value>{_plain(value)}</arg_value>{gap}"
            for key, value in call[1].items()
        )
        return f"<tool_call>{call[0]}{gap}{''.join(pairs)}</tool_call>"

    return gap.join(map(written, calls))


def minimax_m2(calls: Sequence[Call], rng: random.Random) -> str:
    def written(call: Call) -> str:
        pairs = (f'<parameter name="{key}">{_plain(value)}</parameter>\n' for key, value in call[1].items())
        return f'<invoke name="{call[0]}">\n{"".join(pairs)}</invoke>'

    return "<minimax:tool_call>\n" + "\n".join(map(written, calls)) + "\n</minimax:tool_call>"


def deepseek(calls: Sequence[Call], rng: random.Random) -> str:
    is_v3 = rng.random() < 0.5

    def written(call: Call) -> str:
        arguments = _json(call[1], rng)
        inner = (
            f"function<｜tool▁sep｜>{call[0]}\n```json\n{arguments}\n```"
            if is_v3
            else f"{call[0]}<｜tool▁sep｜>{arguments}"
        )
        return f"<｜tool▁call▁begin｜>{inner}<｜tool▁call▁end｜>"

    return f"<｜tool▁calls▁begin｜>{chr(10).join(map(written, calls))}<｜tool▁calls▁end｜>"


def kimi_k2(calls: Sequence[Call], rng: random.Random) -> str:
    inner = "".join(
        f"<|tool_call_begin|>functions.{name}:{i}<|tool_call_argument_begin|>{_json(arguments, rng)}<|tool_call_end|>"
        for i, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def granite(calls: Sequence[Call], rng: random.Random) -> str:
    return f"<|tool_call|>[{', '.join(_object(call, rng) for call in calls)}]"


def phi4_mini_json(calls: Sequence[Call], rng: random.Random) -> str:
    return f"functools[{', '.join(_object(call, rng) for call in calls)}]"


def openai(calls: Sequence[Call], rng: random.Random) -> str:
    def written(call: Call) -> str:
        channel = "<|channel|>commentary"
        recipient = f" to=functions.{call[0]}"
        header = rng.choice([f"{recipient}{channel}", f"{channel}{recipient}"])
        return f"{header} <|constrain|>json<|message|>{_json(call[1], rng)}<|call|>"

    return "<|start|>assistant".join(map(written, calls))


def _marked(value: Any, mark: str) -> str:
    """The value as Gemma writes it: keys without quotes, if they may be, and strings between marks."""
    match value:
        case str():
            return f"{mark}{value}{mark}"
        case dict():
            keys = {key: key if key.isidentifier() else _marked(key, mark) for key in value}
            return "{" + ",".join(f"{keys[key]}:{_marked(each, mark)}" for key, each in value.items()) + "}"
        case list():
            return "[" + ",".join(_marked(each, mark) for each in value) + "]"
    return json.dumps(value)


def gemma4(calls: Sequence[Call], rng: random.Random) -> str:
    return "".join(
        f"<|tool_call>call:{name}{_marked(given, '<|' + chr(34) + '|>')}<tool_call|>" for name, given in calls
    )


def functiongemma(calls: Sequence[Call], rng: random.Random) -> str:
    between = rng.choice(["", "\n"])
    written = (f"call:{name}{_marked(given, '<escape>')}" for name, given in calls)
    return between.join(f"<start_function_call>{each}<end_function_call>" for each in written)


WRITERS: Mapping[str, Callable[[Sequence[Call], random.Random], str]] = {
    writer.__name__: writer
    for writer in (
        *(hermes, llama3_json, mistral, pythonic, olmo3, qwen3_coder, function_tag, glm45, minimax_m2),
        *(deepseek, kimi_k2, seed_oss, lfm2, gigachat3, nemotron_json, jamba, cohere),
        *(granite, phi4_mini_json, openai, gemma4, functiongemma),
    )
} | {"mistral_v3": mistral, "deepseek_v3": deepseek, "deepseek_v31": deepseek}
WHOLE_OUTPUT = {"llama3_json", "pythonic"}  # an output with calls has nothing else


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
    if name == "openai":
        begin = f"<|channel|>analysis<|message|>{reasoning}<|end|><|start|>assistant" if reasoning else ""
        text = f"<|channel|>final<|message|>{content}<|end|><|start|>assistant" if content and calls else ""
        text = f"<|channel|>final<|message|>{content}<|return|>" if content and not calls else text
        return Output(begin + text + written, reasoning, content, calls)
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
