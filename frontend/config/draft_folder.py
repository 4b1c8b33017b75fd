"""The form `draft:FOLDER` of --speculative: short for `--speculative draft --draft-model FOLDER`."""

from collections.abc import Mapping
from typing import Any

from paged_serve.protocol.errors import ConfigError

METHOD, MODEL = "speculation.method", "speculation.draft_model"
_PREFIX = "draft:"

Found = dict[str, tuple[Any, str]]  # by key: the value, and where it was set


def has_draft_folder(method: Any) -> bool:
    """Whether a value of `speculation.method` names a folder."""
    return isinstance(method, str) and method.startswith(_PREFIX)


def with_draft_folder(found: Mapping[str, tuple[Any, str]]) -> Found:
    """`found` with `draft:FOLDER` as the two settings that it stands for. Raises ConfigError if one is given twice."""
    method, origin = found.get(METHOD, ("", ""))
    if not has_draft_folder(method):
        return dict(found)
    folder = method.removeprefix(_PREFIX)
    if not folder:
        raise ConfigError(f"{origin}: method={method}: names no folder; give draft:FOLDER")
    if MODEL in found:
        other, other_origin = found[MODEL]
        raise ConfigError(
            f"the draft model is given twice: {folder} by {origin}, and {other} by {other_origin}; leave one out"
        )
    return {**found, METHOD: ("draft", origin), MODEL: (folder, origin)}
