"""The folder of a draft model or head: its short form `--speculative draft:FOLDER`, and checks before a model loads."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config, SpeculationConfig

from .setting import as_given

METHOD, MODEL = "speculation.method", "speculation.draft_model"
METHODS = ("draft", "eagle3")  # that have a model in a folder

Found = dict[str, tuple[Any, str]]  # by key: the value, and where it was set


def has_draft_folder(method: Any) -> bool:
    """Whether a value of `speculation.method` names a folder."""
    return isinstance(method, str) and method.partition(":")[0] in METHODS and ":" in method


def with_draft_folder(found: Mapping[str, tuple[Any, str]]) -> Found:
    """`found` with a form such as `draft:FOLDER` as the two settings that it stands for.

    Raises ConfigError if one is given twice.
    """
    method, origin = found.get(METHOD, ("", ""))
    if not has_draft_folder(method):
        return dict(found)
    name, _, folder = method.partition(":")
    if not folder:
        raise ConfigError(f"{as_given('speculative', origin)}={method} names no folder; give {name}:FOLDER")
    if MODEL in found:
        other, other_origin = found[MODEL]
        raise ConfigError(
            f"the draft model is given twice: {folder} by {origin}, and {other} by {other_origin}; leave one out"
        )
    return {**found, METHOD: (name, origin), MODEL: (folder, origin)}


def check_draft_folder(speculation: SpeculationConfig, found: Mapping[str, tuple[Any, str]]) -> None:
    """Raise ConfigError if a method lacks its folder, or a folder has no method that reads it.

    `found` is from `with_draft_folder`; it says where the settings come from.
    """
    method, folder = speculation.method, speculation.draft_model
    if speculation.needs_draft_model and not folder:
        raise ConfigError(
            f"{as_given('speculative', found[METHOD][1])}={method} needs a folder; give {method}:FOLDER, "
            "or the draft model as well"
        )
    if folder and not speculation.needs_draft_model and method != "off":  # which takes drafts back from a file
        _, origin = found.get(METHOD, ("", "default"))
        raise ConfigError(
            f"{as_given('draft-model', found[MODEL][1])}={folder} needs the method draft or eagle3, but the method is "
            f"{method} ({origin}); give draft:{folder} or eagle3:{folder}, or leave the folder out"
        )


def with_draft_model(config: Config) -> Config:
    """`config` with the absolute path of its draft model or head. Raises ConfigError if the folder holds none."""
    speculation = config.speculation
    if not speculation.needs_draft_model:
        return config
    folder = Path(os.path.expanduser(speculation.draft_model)).absolute()  # an unknown user's "~" stays
    if not os.path.isfile(folder / "config.json"):  # false also for a name that is too long
        raise ConfigError(
            f"draft_model={speculation.draft_model}: there is no {folder / 'config.json'}; give a local folder, "
            "not a name on the hub"
        )
    speculation = msgspec.structs.replace(speculation, draft_model=str(folder))
    return msgspec.structs.replace(config, speculation=speculation)
