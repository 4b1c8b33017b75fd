"""Calls as the families of models write them that have arguments as JSON."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

Call = tuple[str, dict[str, Any]]
Writer = Callable[[Sequence[Call], random.Random], str]


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


def longcat(calls: Sequence[Call], rng: random.Random) -> str:
    return "\n".join(f"<longcat_tool_call>\n{_object(call, rng)}\n</longcat_tool_call>" for call in calls)


def internlm(calls: Sequence[Call], rng: random.Random) -> str:
    objects = [_object(call, rng, rng.choice(["parameters", "arguments"])) for call in calls]
    return "".join(f"<|action_start|><|plugin|>\n{each}<|action_end|>" for each in objects)


def granite_20b_fc(calls: Sequence[Call], rng: random.Random) -> str:
    return "".join(f"<function_call> {_object(call, rng)}" for call in calls)


def xlam(calls: Sequence[Call], rng: random.Random) -> str:
    return f"[{', '.join(_object(call, rng) for call in calls)}]"


def llama3_json(calls: Sequence[Call], rng: random.Random) -> str:
    begin = rng.choice(["", "<|python_tag|>"])
    return begin + "; ".join(_object(call, rng, "parameters") for call in calls)


def mistral(calls: Sequence[Call], rng: random.Random) -> str:
    if rng.random() < 0.5:
        return f"[TOOL_CALLS][{', '.join(_object(call, rng) for call in calls)}]"
    call_id = rng.choice(["", "[CALL_ID]a1b2c3d4e"])
    return "".join(f"[TOOL_CALLS]{name}{call_id}[ARGS]{_json(arguments, rng)}" for name, arguments in calls)


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


def functionary_v32(calls: Sequence[Call], rng: random.Random) -> str:
    return ">>>".join(f"{name}\n{_json(arguments, rng)}" for name, arguments in calls)


def minimax(calls: Sequence[Call], rng: random.Random) -> str:
    inner = "\n".join(_object(call, rng) for call in calls)
    return f"<tool_calls>\n{inner}\n</tool_calls>"


def apertus(calls: Sequence[Call], rng: random.Random) -> str:
    inner = ", ".join(f'{{"{name}": {_json(arguments, rng)}}}' for name, arguments in calls)
    return f"<|tools_prefix|>[{inner}]<|tools_suffix|>"


def function_tag(calls: Sequence[Call], rng: random.Random) -> str:
    return "".join(f"<function={name}>{_json(arguments, rng)}</function>" for name, arguments in calls)


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


def solar_open(calls: Sequence[Call], rng: random.Random) -> str:
    def written(call: Call) -> str:
        call_id = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=10))
        begin = f"<|tool_call:begin|>{call_id}<|tool_call:name|>{call[0]}"
        return f"{begin}<|tool_call:args|>{_json(call[1], rng)}<|tool_call:end|>"

    return f"<|tool_calls|>{''.join(map(written, calls))}" + rng.choice(["", "<|calls|>"])


JSON_WRITERS: tuple[Writer, ...] = (
    *(hermes, llama3_json, mistral, function_tag, deepseek, kimi_k2, gigachat3, nemotron_json, jamba, cohere),
    *(granite, phi4_mini_json, openai, solar_open, functionary_v32, minimax, apertus, longcat),
    *(internlm, granite_20b_fc, xlam),
)
