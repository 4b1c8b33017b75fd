"""The forms `draft:FOLDER` and `eagle3:FOLDER` of --speculative: short for e.g. `draft` and `--draft-model FOLDER`."""

from collections.abc import Mapping
from typing import Any

from paged_serve.protocol.errors import ConfigError

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
        raise ConfigError(f"{origin}: method={method} names no folder; give {name}:FOLDER")
    if MODEL in found:
        other, other_origin = found[MODEL]
        raise ConfigError(
            f"the draft model is given twice: {folder} by {origin}, and {other} by {other_origin}; leave one out"
        )
    return {**found, METHOD: (name, origin), MODEL: (folder, origin)}
