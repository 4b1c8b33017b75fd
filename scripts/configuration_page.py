"""Generates docs/configuration.md: one row per setting, from the table of settings and the types with their bounds."""

from collections.abc import Callable
from itertools import groupby
from typing import Any

import msgspec
from msgspec import inspect as types

from paged_serve.frontend.config.setting import Setting
from paged_serve.frontend.config.settings import SETTINGS
from paged_serve.frontend.config.words import size_text
from paged_serve.protocol.messages.config import Config

INTRODUCTION = """# Configuration

This page lists every setting of `paged-serve serve`. Each can be given as a flag, as an environment variable, or in a
file (`--config FILE`, or `PAGED_SERVE_CONFIG`). A flag takes precedence over the environment, the environment over the
file, and the file over the default. `paged-serve config show` prints the values that would be used and the source of
each. The supervisor resolves the configuration once and hands it to every process; nothing reads the environment later.

The file is TOML, YAML or JSON. Its keys are the long flags without their dashes; unknown keys are refused by name:

```toml
model = "models/Qwen3-0.6B"
tp = 2
max-num-seqs = 64
kv-cache-memory-bytes = "4G"
```

Numbers may end in K, M, G or T for powers of 1024, or in k, m, g or t for powers of 1000: `4G`, `16k`.
`PAGED_SERVE_LOG_FORMAT=json` makes every log line a JSON object (default: `text`).
"""


def configuration_page() -> str:
    parts = [INTRODUCTION]
    for group, settings in groupby(SETTINGS, key=lambda setting: setting.group):
        parts.append(f"\n## {group}\n\n| flag | environment | values | default | |\n|---|---|---|---|---|")
        parts += [row(setting) for setting in settings]
    return "\n".join(parts) + "\n"


def row(setting: Setting) -> str:
    layer, field = setting.key.split(".")
    value = getattr(getattr(Config(), layer), field)
    config_type = next(
        entry.type for entry in types.type_info(type(getattr(Config(), layer))).fields if entry.name == field
    )
    names = [setting.environment, *([setting.extra_environment] if setting.extra_environment else [])]
    cells = [
        ", ".join(f"`{flag}`" for flag in setting.flags),
        ", ".join(f"`{name}`" for name in names),
        choices(setting) or values(config_type, size_text if setting.metavar == "BYTES" else grouped),
        default(value, setting),
        setting.help.replace("|", "\\|"),
    ]
    return "| " + " | ".join(cells) + " |"


def choices(setting: Setting) -> str:
    """The values of a setting that takes more than its type lists, such as draft:FOLDER."""
    listed = setting.expected.removeprefix("must be one of ")
    return ", ".join(f"`{choice}`" for choice in listed.split(", ")) if listed != setting.expected else ""


def default(value: Any, setting: Setting) -> str:
    if value in (None, "", ()):
        return ""
    return f"`{size_text(value) if setting.metavar == 'BYTES' else msgspec.json.encode(value).decode()}`"


def values(config_type: Any, number: Callable[[Any], str]) -> str:
    match config_type:
        case types.UnionType(types=members):
            return " or ".join(values(member, number) for member in members if not isinstance(member, types.NoneType))
        case types.LiteralType(values=choices):
            return ", ".join(f"`{choice}`" for choice in choices if choice != "")
        case types.BoolType():
            return "on, off (`--no-…`)"
        case types.VarTupleType(item_type=item):
            return f"{values(item, number)}, repeatable"
        case types.IntType(ge=low, le=high):
            return f"integer{bounds(low, None, high, number)}"
        case types.FloatType(ge=low, gt=above, le=high):
            return f"number{bounds(low, above, high, number)}"
    return "text"


def grouped(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else f"{number:g}"


def bounds(low: float | None, above: float | None, high: float | None, number: Callable[[Any], str]) -> str:
    limit = "" if high is None or high >= 10**9 else number(high)
    if above is not None:
        return f", above {number(above)}" + (f", up to {limit}" if limit else "")
    if not limit:
        return f", from {number(low)}" if low is not None else ""
    return f" {number(low or 0)} to {limit}"
