"""Calls as the families of models write them that have arguments one by one, or with marks instead of quotes."""

import json
import random
from collections.abc import Sequence
from typing import Any

from .written_json_calls import Call, Writer


def _python(call: Call) -> str:
    return f"{call[0]}({', '.join(f'{key}={value!r}' for key, value in call[1].items())})"


def pythonic(calls: Sequence[Call], rng: random.Random) -> str:
    text = f"[{', '.join(map(_python, calls))}]"
    return rng.choice([text, f"<|python_start|>{text}<|python_end|>"])


def olmo3(calls: Sequence[Call], rng: random.Random) -> str:
    inner = "\n".join(map(_python, calls))
    return f"<function_calls>{inner}</function_calls>"


def lfm2(calls: Sequence[Call], rng: random.Random) -> str:
    def written(call: Call) -> str:
        """LFM2.5 writes objects as JSON within its Python."""
        pairs = ((key, json.dumps(value) if isinstance(value, dict) else repr(value)) for key, value in call[1].items())
        return f"{call[0]}({', '.join(f'{key}={value}' for key, value in pairs)})"

    return f"<|tool_call_start|>[{', '.join(map(written, calls))}]<|tool_call_end|>"


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


def _dsml(calls: Sequence[Call], tag: str) -> str:
    def parameter(key: str, value: Any) -> str:
        kind = "true" if isinstance(value, str) else "false"
        return f'<｜DSML｜parameter name="{key}" string="{kind}">{_plain(value)}</｜DSML｜parameter>\n'

    def written(call: Call) -> str:
        parameters = "".join(parameter(key, value) for key, value in call[1].items())
        return f'<｜DSML｜invoke name="{call[0]}">\n{parameters}</｜DSML｜invoke>\n'

    return f"<｜DSML｜{tag}>\n{''.join(map(written, calls))}</｜DSML｜{tag}>"


def deepseek_v32(calls: Sequence[Call], rng: random.Random) -> str:
    return _dsml(calls, "function_calls")


def deepseek_v4(calls: Sequence[Call], rng: random.Random) -> str:
    return _dsml(calls, "tool_calls")


def hy_v3(calls: Sequence[Call], rng: random.Random) -> str:
    def tagged(tag: str, text: str) -> str:
        return f"<{tag}:opensource>{text}</{tag}:opensource>"

    def written(call: Call) -> str:
        pairs = (f"{tagged('arg_key', key)}\n{tagged('arg_value', _plain(value))}\n" for key, value in call[1].items())
        return tagged("tool_call", f"{call[0]}<tool_sep:opensource>\n{''.join(pairs)}") + "\n"

    return tagged("tool_calls", f"\n{''.join(map(written, calls))}")


def minicpm5(calls: Sequence[Call], rng: random.Random) -> str:
    """Texts with certain characters are CDATA, and other values as Python writes them."""

    def value(given: Any) -> str:
        if isinstance(given, str) and (set(given) & set("<&\n") or rng.random() < 0.5):
            return f"<![CDATA[{given}]]>"
        return str(given)

    def written(call: Call) -> str:
        parameters = "".join(f'<param name="{key}">{value(given)}</param>' for key, given in call[1].items())
        return f'<function name="{call[0]}">{parameters}</function>'

    return "\n".join(map(written, calls))


def muse(calls: Sequence[Call], rng: random.Random) -> str:
    def written(call: Call) -> str:
        parameters = "".join(
            f'<atem:parameter name="{key}">{_plain(value)}</atem:parameter>\n' for key, value in call[1].items()
        )
        invoke = f'<atem:invoke name="{call[0]}">\n{parameters}</atem:invoke>'
        return f" to={call[0]}<|message|><atem:function_calls>\n{invoke}\n</atem:function_calls>"

    return "<|eom|><|start|>assistant".join(map(written, calls))


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


PARAMETER_WRITERS: tuple[Writer, ...] = (
    *(pythonic, olmo3, lfm2, qwen3_coder, seed_oss, glm45, minimax_m2, gemma4, functiongemma),
    *(deepseek_v32, deepseek_v4, hy_v3, minicpm5, muse),
)
