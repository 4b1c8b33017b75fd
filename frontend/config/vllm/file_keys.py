"""Keys of a configuration file that was written for vLLM."""

from typing import Any

from paged_serve.protocol.errors import ConfigError

from .options import INSTEAD_OF_FLAG, NO_EFFECT, OF_SERVER

_KNOWN = NO_EFFECT | OF_SERVER


def has_no_effect(key: str, value: Any, path: str) -> bool:
    """Whether the file gives an option of vLLM a value that has no effect here.

    Raises ConfigError for an option or value of vLLM that is not supported, naming what to use instead.
    """
    name = key.replace("-", "_").partition(".")[0]
    if name in _KNOWN and (value is None or not _KNOWN[name] or value in _KNOWN[name]):
        return True
    if name in INSTEAD_OF_FLAG:
        raise ConfigError(f"{path}: {key} is not supported: {INSTEAD_OF_FLAG[name]}")
    if name in _KNOWN:
        raise ConfigError(f"{path}: {key} must be {' or '.join(map(repr, _KNOWN[name]))}, as nothing else is supported")
    return False
