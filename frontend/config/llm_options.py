"""Turns the keyword arguments of LLM into one Config. They have the names of the command line's options."""

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config, SpeculationConfig
from paged_serve.protocol.plugins import check_plugins

from ..adapters.folders import with_adapters
from .draft_folder import check_draft_folder, with_draft_folder, with_draft_model
from .model_folder import find_model_folder, with_home_folders
from .settings import BY_NAME
from .vllm.options import ALIASES, INSTEAD, NO_EFFECT, OF_ENGINE
from .words import hint

_OF_VLLM = NO_EFFECT | OF_ENGINE


def config_of(model: str | os.PathLike[str], options: Mapping[str, Any]) -> Config:
    """The configuration, with folders in place of names. Raises ConfigError, naming the argument at fault."""
    model = _path_text(model)
    if not isinstance(model, str):
        raise ConfigError(f"model={model!r:.100}: must be a folder, a GGUF file, or a name on the Hugging Face hub")
    layers: dict[str, dict[str, Any]] = {"server": {"log_level": "warning"}}
    found: dict[str, tuple[Any, str]] = {}  # by key: the value, and the argument's name
    for name, value in options.items():
        if value is None or _has_no_effect(name, value):
            continue
        setting = BY_NAME.get(name.replace("_", "-"))
        if setting is None:
            raise ConfigError(_unknown(name, value))
        found[setting.key] = value, name
    found = with_draft_folder(found)
    for key_of_layer, (value, name) in found.items():
        layer, key = key_of_layer.split(".")
        layers.setdefault(layer, {})[key] = _converted(name, layer, key, value)
    speculation = msgspec.convert(layers.get("speculation", {}), SpeculationConfig)
    check_draft_folder(speculation, found)
    given = layers.get("model", {})
    folder = find_model_folder(model, given.get("revision", ""), has_tokenizer=not given.get("tokenizer"))
    names = (model,) if model else ("demo",)
    layers["model"] = {"served_model_names": names, "tokenizer": folder, **given, "model": folder}
    config = with_draft_model(with_adapters(with_home_folders(msgspec.convert(layers, Config))))
    check_plugins(config.model)
    return config


def _path_text(value: Any) -> Any:
    """A pathlib.Path as text; other values unchanged."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _converted(name: str, layer: str, key: str, value: Any) -> Any:
    value = _path_text(value)
    if key == "dtype":
        value = str(value).removeprefix("torch.")
    if key in ("override_generation_config", "default_chat_template_kwargs") and isinstance(value, Mapping):
        value = msgspec.json.encode(value).decode()
    elif isinstance(value, str) and (aliases := ALIASES.get(f"{layer}.{key}")) is not None:
        value = aliases.get(value, value)
    elif key in ("served_model_names", "api_keys", "plugins", "adapters"):
        value = (value,) if isinstance(value, str) else value
    try:
        converted = msgspec.convert({layer: {key: value}}, Config)
    except UnicodeEncodeError:
        raise ConfigError(f"{name}={value!r:.200}: has half of a surrogate pair, which is not valid text") from None
    except msgspec.ValidationError as error:
        from .options import reason_of  # imports click

        raise ConfigError(f"{name}={value!r:.200}: {reason_of(f'{layer}.{key}', error)}") from None
    return getattr(getattr(converted, layer), key)


def _has_no_effect(name: str, value: Any) -> bool:
    values = _OF_VLLM.get(name)
    return values is not None and (not values or value in values)


def _unknown(name: str, value: Any) -> str:
    if name in INSTEAD:
        return f"LLM has no {name}: {INSTEAD[name]}"
    if name in _OF_VLLM:
        return f"{name}={value!r:.200}: must be {' or '.join(map(repr, _OF_VLLM[name]))}"
    known = [other.replace("-", "_") for other in BY_NAME]
    return f"LLM has no argument {name}{hint(name, known)}"
