"""Finds the local folder of a model: by path, by name on the Hugging Face hub, or made of a GGUF file.

Cheap checks find out whether it can be served. The folders that a server writes to are found here, too.
"""

import importlib.resources
import json
import os
import re
import subprocess
from pathlib import Path

import msgspec

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.process.lifeline import lifeline_pipe

from ..python_command import python_command, python_environment

DEMO_MODEL_NAME = "demo"
GGUF = ".gguf"
WRITTEN = (  # layer of the configuration, field, option
    ("kv_tier", "dir", "kv_tier_dir"),
    ("model", "packed_weights_dir", "packed_weights_dir"),
    ("server", "store_responses", "store_responses"),
)
_PART = r"[A-Za-z0-9][\w.-]*"
_HUB_NAME = re.compile(rf"(?!.*\.gguf$){_PART}(/{_PART}(:{_PART})?)?|{_PART}/{_PART}(/{_PART})+\.gguf")


def demo_model_folder() -> Path:
    return Path(str(importlib.resources.files("paged_serve"))) / "demo_model"


def is_hub_name(model: str) -> bool:
    """Whether `model` is a name on the hub, which no file or folder here has: `org/name`; of a model in a repository of
    GGUF files `org/name:Q4_K_M`, or `org/name/file.gguf`."""
    return _HUB_NAME.fullmatch(model) is not None and not os.path.exists(model)


def find_model_folder(model: str, revision: str = "", *, has_tokenizer: bool = True) -> str:
    """The absolute folder of `model`: "" (the built-in demo model), a folder, a GGUF file, or a name on the hub.

    Downloads a hub model that is not in the local cache; `revision`: its branch, tag or commit, "" for the main branch.
    Without `has_tokenizer` the tokenizer of a GGUF file, which may be unsupported, is not converted. Raises ConfigError
    that names the places that were tried.
    """
    folder = Path(os.path.expanduser(model)) if model else demo_model_folder()  # an unknown user's "~" stays
    if revision and not is_hub_name(model):
        raise ConfigError(f"revision={revision}: only a model on the hub has revisions, and {folder} is not one")
    try:
        if folder.is_dir():
            return _checked(folder.resolve())
        is_file, is_other = folder.is_file(), folder.exists()
    except OSError as error:
        raise ConfigError(f"model {model:.200} cannot be read: {error.strerror}") from None
    if folder.suffix == GGUF and is_file:
        return _made_of_gguf(folder, has_tokenizer=has_tokenizer)
    if is_other:
        raise ConfigError(
            f"model {model} is a file; give the folder that holds config.json and *.safetensors, or a {GGUF} file"
        )
    if not model:
        raise ConfigError(f"this installation lacks the demo model ({folder}); give a model folder or a hub name")
    if not _HUB_NAME.fullmatch(model):
        kind = "file" if folder.suffix == GGUF else "model folder"
        raise ConfigError(f"there is no {kind} {model} (looked at {folder.absolute()}), nor is it a hub name")
    found = Path(_download(model, revision))
    return _made_of_gguf(found, has_tokenizer=has_tokenizer) if found.suffix == GGUF else _checked(found)


def _checked(folder: Path) -> str:
    """Cheap checks, so that a wrong folder is refused before any process starts."""
    if not (folder / "config.json").is_file():
        raise ConfigError(f"model folder {folder} has no config.json; is it a Hugging Face checkpoint?")
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except ValueError as error:
        raise ConfigError(f"{folder / 'config.json'} is not JSON: {error}") from None
    except RecursionError:
        raise ConfigError(f"{folder / 'config.json'} is nested too deeply") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{folder / 'config.json'} must hold a JSON object")
    if not any(folder.glob("*.safetensors")):
        others = sorted({path.suffix for path in folder.iterdir()} & {".bin", ".pt", ".pth", ".gguf"})
        found = f" (it has {', '.join(others)} files)" if others else ""
        instead = f"give the path of one of its {GGUF} files" if GGUF in others else "only that format is read"
        raise ConfigError(f"model folder {folder} has no *.safetensors{found}; {instead}")
    return str(folder)


def _download(model: str, revision: str) -> str:
    """Download in a separate process: the hub's library is large, and the supervisor stays small."""
    folder, reason = _answer("paged_serve.frontend.hub.download", model, revision)
    if folder:
        return folder
    kind = "file" if model.endswith(GGUF) else "folder"
    raise ConfigError(f"there is no {kind} {Path(model).absolute()}, and from the Hugging Face hub: {reason}")


def _made_of_gguf(file: Path, *, has_tokenizer: bool) -> str:
    """The folder of a GGUF file, made in a separate process: conversion takes much memory, the supervisor little."""
    options = () if has_tokenizer else ("without-tokenizer",)
    folder, reason = _answer("paged_serve.frontend.gguf.folder", str(file.absolute()), *options)
    if folder:
        return folder
    raise ConfigError(reason)


def _answer(module: str, *arguments: str) -> tuple[str, str]:
    """The folder that a helper process prints, or else the reason why there is none. It ends with this process."""
    lifeline = lifeline_pipe()
    command, environment = python_command(module, str(lifeline[0]), *arguments), python_environment()
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, pass_fds=lifeline[:1])
    finally:
        for descriptor in lifeline:
            os.close(descriptor)
    answer = done.stdout.strip().splitlines()
    if done.returncode == 0 and answer:
        return answer[-1], ""
    return "", answer[-1] if answer else f"{module} ended with exit code {done.returncode}"


def with_home_folders(config: Config) -> Config:
    """`config` with the user's home folder in place of a "~", in the names of folders that are written.

    Raises ConfigError if there is no home folder: a folder named "~" would be made in the current one.
    """
    for layer, field, option in WRITTEN:
        settings = getattr(config, layer)
        folder = os.path.expanduser(getattr(settings, field))
        if folder.startswith("~/"):
            raise ConfigError(f"{option}={folder}: this user has no home folder (set HOME, or give the whole path)")
        config = msgspec.structs.replace(config, **{layer: msgspec.structs.replace(settings, **{field: folder})})
    return config
