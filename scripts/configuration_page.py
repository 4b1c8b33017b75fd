"""Generates docs/configuration.md: one row per setting, from the table of settings and the types with their bounds."""

from itertools import groupby
from typing import Any

import msgspec
from msgspec import inspect as types

from paged_serve.frontend.config.setting import Setting
from paged_serve.frontend.config.settings import SETTINGS
from paged_serve.protocol.messages.config import Config

INTRODUCTION = """# Configuration

Every value can come from a flag, from the environment, or from a file given with `--config`; the first of these that
names it wins, in this order, before the default. `paged-serve config show` prints what would be used and where each
value comes from. The configuration is resolved once, in the supervisor, which hands it to every process; nothing reads
the environment later.

A file is TOML, YAML or JSON with the long flags' names as keys; unknown keys are refused by name:

```toml
model = "models/Qwen3-0.6B"
tp = 2
max-num-seqs = 64
kv-cache-memory-bytes = "4G"
```

`PAGED_SERVE_LOG_FORMAT=json` makes every log line a JSON object.
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
        values(config_type),
        f"`{msgspec.json.encode(value).decode()}`" if value not in (None, "", ()) else "",
        setting.help.replace("|", "\\|"),
    ]
    return "| " + " | ".join(cells) + " |"


def values(config_type: Any) -> str:
    match config_type:
        case types.UnionType(types=members):
            return " or ".join(values(member) for member in members if not isinstance(member, types.NoneType))
        case types.LiteralType(values=choices):
            return ", ".join(f"`{choice}`" for choice in choices if choice != "")
        case types.BoolType():
            return "on, off (`--no-…`)"
        case types.VarTupleType(item_type=item):
            return f"{values(item)}, repeatable"
        case types.IntType(ge=low, le=high):
            return f"integer{bounds(low, high)}"
        case types.FloatType(ge=low, gt=above, le=high):
            return f"number{bounds(low if low is not None else above, high)}"
    return "text"


def bounds(low: float | None, high: float | None) -> str:
    if high is None or high >= 2**31 - 1:
        return f", from {low:g}" if low is not None else ""
    return f" {low or 0:g} to {high:g}"
