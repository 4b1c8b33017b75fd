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
from .words import hint

_DTYPES = {"half": "float16", "float": "float32"}
NO_EFFECT: dict[str, tuple[Any, ...]] = {  # arguments of other engines: the values that have no effect
    "allowed_local_media_path": ("",),
    "async_scheduling": (True, False),
    "convert": ("auto", "none", "embed"),
    "cpu_offload_gb": (0,),
    "data_parallel_size": (1,),
    "disable_custom_all_reduce": (True, False),
    "disable_log_stats": (True, False),
    "distributed_executor_backend": ("mp",),
    "enable_chunked_prefill": (True,),
    "enforce_eager": (True, False),
    "hf_overrides": ({},),
    "limit_mm_per_prompt": ({},),
    "load_format": ("auto", "safetensors", "gguf"),
    "logits_processors": ([], ()),
    "mm_processor_kwargs": ({},),
    "pipeline_parallel_size": (1,),
    "runner": ("auto", "generate", "pooling"),
    "skip_tokenizer_init": (False,),
    "tokenizer_mode": ("auto",),
}
_INSTEAD = {
    "cpu_offload_gb": "weights are not offloaded",
    "data_parallel_size": "start one engine for each group of devices",
    "enable_chunked_prefill": "long prompts are always split into chunks",
    "logits_processors": "use plugin=[...] here, and SamplingParams(logits_processors=[...]) per request",
    "pipeline_parallel_size": "layers are not split among devices; use tensor_parallel_size",
    "runner": "the files of a model determine its tasks",
    "swap_space": "preempted requests are computed again, not swapped",
}


def config_of(model: str | os.PathLike[str], options: Mapping[str, Any]) -> Config:
    """The configuration, with folders in place of names. Raises ConfigError, naming the argument at fault."""
    model = _path_text(model)
    if not isinstance(model, str):
        raise ConfigError(f"model={model!r:.100}: must be a folder, a GGUF file, or a name on the Hugging Face hub")
    layers: dict[str, dict[str, Any]] = {"server": {"log_level": "warning"}}
    found: dict[str, tuple[Any, str]] = {}  # by key: the value, and the argument's name
    for name, value in options.items():
        if value is None or value in NO_EFFECT.get(name, ()):
            continue
        setting = BY_NAME.get(name.replace("_", "-"))
        if setting is None:
            raise ConfigError(_unknown(name))
        found[setting.key] = value, name
    found = with_draft_folder(found)
    for key_of_layer, (value, name) in found.items():
        layer, key = key_of_layer.split(".")
        layers.setdefault(layer, {})[key] = _converted(name, layer, key, value)
    speculation = msgspec.convert(layers.get("speculation", {}), SpeculationConfig)
    check_draft_folder(speculation, found)
    folder = find_model_folder(model, has_tokenizer=not layers.get("model", {}).get("tokenizer"))
    names = (model,) if model else ("demo",)
    layers["model"] = {"served_model_names": names, "tokenizer": folder, **layers.get("model", {}), "model": folder}
    config = with_draft_model(with_adapters(with_home_folders(msgspec.convert(layers, Config))))
    check_plugins(config.model)
    return config


def _path_text(value: Any) -> Any:
    """A pathlib.Path as text; other values unchanged."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _converted(name: str, layer: str, key: str, value: Any) -> Any:
    value = _path_text(value)
    if key == "dtype":
        text = str(value).removeprefix("torch.")
        value = _DTYPES.get(text, text)
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


def _unknown(name: str) -> str:
    if name in _INSTEAD:
        return f"LLM has no {name}: {_INSTEAD[name]}"
    known = [other.replace("-", "_") for other in BY_NAME]
    return f"LLM has no argument {name}{hint(name, known)}"
