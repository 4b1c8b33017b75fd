"""Resolves flags, environment and file to one Config, and records where each value came from.

Precedence: flag > environment > file > default. Every value passes the same strict check, whatever its source.
"""

import os
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import msgspec

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.plugins import check_plugins

from .draft_folder import check_draft_folder, with_draft_folder
from .grouped_command import GroupedOption
from .setting import Setting, as_given
from .settings import BY_KEY, BY_NAME, SETTINGS
from .vllm.file_keys import has_no_effect
from .vllm.options import ALIASES
from .words import SIZE_UNITS, TOO_MANY, closest, hint, plain, size_text

PREFIX = "PAGED_SERVE_"
CONFIG_ENVIRONMENT = PREFIX + "CONFIG"
LOG_FORMAT_ENVIRONMENT = PREFIX + "LOG_FORMAT"  # read by every process before there is a configuration
LOG_FORMATS = ("text", "json")
TEST_PREFIX = PREFIX + "TEST_"
# Kubernetes sets these in every container when a service is called paged-serve.
_OF_KUBERNETES = re.compile(PREFIX + r"(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Resolved:
    """The configuration, and the origin of each of its values by key ("default" where it was not set)."""

    config: Config
    origins: dict[str, str]
    without_effect: tuple[str, ...] = ()  # options of vLLM in the file


def config_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the argument MODEL, an option for each setting, and --config. All arrive as keyword arguments."""
    for setting in reversed(SETTINGS):
        function = _option(setting)(function)
    config_help = "TOML, YAML or JSON file with these options, named without the leading dashes."
    function = click.option("--config", "config_file", metavar="FILE", help=config_help)(function)
    return click.argument("model_argument", metavar="[MODEL]", required=False)(function)


def resolve(flags: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Resolved:
    """The configuration for these keyword arguments of a `config_options` command. Raises ConfigError."""
    environment = os.environ if environment is None else environment
    path = flags.get("config_file") or environment.get(CONFIG_ENVIRONMENT, "")
    found: dict[str, tuple[Any, str]] = {}  # key: (value, origin); later sources win
    file = _from_file(path) if path else _File()
    found |= file.found
    found |= _from_environment(environment)
    found |= _from_flags(flags)
    layers: dict[str, dict[str, Any]] = {}
    found = with_draft_folder(found)
    for key, (value, origin) in found.items():
        layer, name = key.split(".")
        layers.setdefault(layer, {})[name] = checked(key, value, origin)
    origins = {setting.key: found.get(setting.key, (None, "default"))[1] for setting in SETTINGS}
    config = msgspec.convert(layers, Config, strict=False)
    check_draft_folder(config.speculation, found)
    check_plugins(config.model)
    return Resolved(config, origins, tuple(file.without_effect))


def _option(setting: Setting) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    kind = type_of(setting.key)
    name = setting.name.replace("-", "_")
    help_text = setting.help + _default_text(setting.key)
    if kind is bool:
        flags = [f"{setting.flags[0]}/--no-{setting.name}", *(f" /{flag}" for flag in setting.off_flags)]
        return click.option(*flags, name, cls=GroupedOption, group=setting.group, default=None, help=help_text)
    metavar = setting.metavar or "|".join(str(choice) for choice in typing.get_args(kind) if choice != "")
    multiple = typing.get_origin(kind) is tuple
    shown = {"group": setting.group, "metavar": metavar, "help": help_text}
    return click.option(*setting.flags, name, cls=GroupedOption, multiple=multiple, default=None, **shown)


def _default_text(key: str) -> str:
    layer, field = key.split(".")
    default = getattr(getattr(Config(), layer), field)
    if default in (None, "", ()) or (isinstance(default, bool) and not default):
        return ""
    return f"  [{size_text(default) if BY_KEY[key].metavar == 'BYTES' else _text(default)}]"


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return "on" if value is True else f"{value:g}" if isinstance(value, float) else str(value)


def type_of(key: str) -> Any:
    """The field's type without bounds and None: int, bool, Literal[...], tuple[str, ...]."""
    layer, field = key.split(".")
    layer_type = typing.get_type_hints(Config)[layer]
    kind = typing.get_type_hints(layer_type)[field]
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        kind = next(member for member in typing.get_args(kind) if member is not types.NoneType)
    return kind


def _from_flags(flags: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    found = {}
    if flags.get("model_argument") is not None:
        if flags.get("model") is not None:
            raise ConfigError(f"the model is given twice: {flags['model_argument']} and --model {flags['model']}")
        found["model.model"] = (flags["model_argument"], "argument MODEL")
    for setting in SETTINGS:
        value = flags.get(setting.name.replace("-", "_"))
        if value is not None and value != ():
            found[setting.key] = (value, f"flag {setting.flags[0]}")
    return found


def _check_environment(environment: Mapping[str, str]) -> None:
    """Raises ConfigError for an unknown variable with our prefix, and for an unknown format of the log."""
    known = {CONFIG_ENVIRONMENT, LOG_FORMAT_ENVIRONMENT, *(setting.environment for setting in SETTINGS)}
    for name in sorted(environment):
        ours = name.startswith(PREFIX) and not name.startswith(TEST_PREFIX) and not _OF_KUBERNETES.fullmatch(name)
        if ours and name not in known:
            meant = closest(name.removeprefix(PREFIX), [other.removeprefix(PREFIX) for other in known])
            suggestion = f"; did you mean {PREFIX}{meant}?" if meant else ""
            raise ConfigError(f"environment {name}: there is no such variable{suggestion}")
    if (log_format := environment.get(LOG_FORMAT_ENVIRONMENT) or LOG_FORMATS[0]) not in LOG_FORMATS:
        formats = ", ".join(LOG_FORMATS)
        raise ConfigError(f"environment {LOG_FORMAT_ENVIRONMENT}={log_format:.100}: must be one of {formats}")


def _from_environment(environment: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    _check_environment(environment)
    found: dict[str, tuple[Any, str]] = {}
    for setting in SETTINGS:
        for name in (setting.extra_environment, setting.environment):  # the second one wins
            value = environment.get(name, "")
            if name.startswith("XDG_") and not os.path.isabs(value):  # ignored, by the XDG base directory specification
                continue
            if value and not (setting.key == "server.port" and "://" in value):  # set by Kubernetes again
                several = typing.get_origin(type_of(setting.key)) is tuple
                parts = value.split(",") if several and not setting.is_list else value
                found[setting.key] = (parts, f"environment {name}")
    return found


@dataclass(slots=True)
class _File:
    found: dict[str, tuple[Any, str]] = field(default_factory=dict)
    without_effect: list[str] = field(default_factory=list)  # keys of vLLM


def _from_file(path: str) -> _File:
    file = _File()
    layers = {setting.key.partition(".")[0] for setting in SETTINGS}
    for name, value in _read_file(path).items():
        if name in layers and isinstance(value, dict):
            for inner_name, inner in value.items():
                file.found[_known(f"{name}.{inner_name}", path)] = (inner, f"file {path}")
        elif has_no_effect(name, value, path):
            file.without_effect.append(name)
        else:
            key = _known(name, path)
            is_json = isinstance(value, dict) and BY_KEY[key].metavar == "JSON"
            file.found[key] = (msgspec.json.encode(value).decode() if is_json else value, f"file {path}")
    return file


def _known(name: str, path: str) -> str:
    """The key in Config of a name in a file: `layer.field`, or a flag without its dashes."""
    keys = {setting.key for setting in SETTINGS}
    setting = BY_NAME.get(name.replace("_", "-"))
    if name in keys or setting is not None:
        return setting.key if setting is not None else name
    raise ConfigError(f"{path}: there is no option {name}{hint(name.replace('_', '-'), [*BY_NAME, *keys])}")


def _read_file(path: str) -> dict[str, Any]:
    decoders: dict[str, Callable[[bytes], Any]] = {
        ".toml": msgspec.toml.decode,
        ".yaml": msgspec.yaml.decode,
        ".yml": msgspec.yaml.decode,
        ".json": msgspec.json.decode,
    }
    decode = decoders.get(Path(path).suffix)
    if decode is None:
        raise ConfigError(f"configuration file {path} must end in {', '.join(decoders)}")
    try:
        content = decode(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read configuration file {path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"configuration file {path}: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"configuration file {path} must map options to values")
    return content


def checked(key: str, value: Any, origin: str) -> Any:
    """`value` in its field's type. Raises ConfigError, naming the valid values."""
    layer, field = key.split(".")
    layer_type = typing.get_type_hints(Config)[layer]
    try:
        value = _words(value) if BY_KEY[key].is_list else value
        converted = msgspec.convert({field: _read(type_of(key), key, value)}, layer_type, strict=False)
    except (msgspec.DecodeError, ValueError) as error:
        shown = "***" if key == "server.api_keys" else _text(value)
        raise ConfigError(f"{as_given(BY_KEY[key].name, origin)}={shown}: {reason_of(key, error)}") from None
    return getattr(converted, field)


def reason_of(key: str, error: Exception) -> str:
    """Why msgspec refuses a value of `key`, with the valid ones if they are few."""
    setting = BY_KEY[key]
    choices = [str(choice) for choice in typing.get_args(type_of(key)) if isinstance(choice, (str, int))]
    reason = plain(str(error))
    if (setting.expected or choices) and not reason.startswith(TOO_MANY):
        return setting.expected or f"must be one of {', '.join(choice for choice in choices if choice)}"
    limit = re.fullmatch(r"(must be at (?:least|most) )(\d+)", reason) if setting.metavar == "BYTES" else None
    return limit[1] + size_text(int(limit[2])) if limit else reason


def _words(value: Any) -> list[Any]:
    """A list of words, split: both `a,b` and `["a", "b"]`, the syntax of other servers, are two words."""
    found: list[Any] = []
    for text in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(text, str) and text.lstrip().startswith('["'):
            found += msgspec.json.decode(text, type=list[str])
        else:
            found += [word.strip() for word in text.split(",")] if isinstance(text, str) else [text]
    return found


def _read(kind: Any, key: str, value: Any) -> Any:
    """Turn spellings for people (4G, half, on, auto) into those for msgspec."""
    if not isinstance(value, str):
        return [value] if typing.get_origin(kind) is tuple and not isinstance(value, (list, tuple)) else value
    if typing.get_origin(kind) is tuple:
        return [value]
    value = ALIASES.get(key, {}).get(value, value)
    if key == "model.max_model_len" and value in ("auto", "-1"):
        return None
    if kind is bool:
        if value.lower() not in TRUE + FALSE:
            raise ValueError(f"must be one of {', '.join(TRUE + FALSE)}")
        return value.lower() in TRUE
    number = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT])(?:i?B)?", value)
    if number and typing.get_origin(kind) is not typing.Literal and kind is not str:
        return int(float(number[1]) * SIZE_UNITS[number[2]])
    if BY_KEY[key].metavar == "BYTES" and not re.fullmatch(r"-?\d+", value):
        raise ValueError("must be a number of bytes, like 4G or 512M")
    return value
