"""Reads the JSON files of a model folder as a given type; an error names the file."""

import json
import math
from pathlib import Path
from typing import TypeVar

import msgspec

from .errors import ConfigError

T = TypeVar("T")


def _constant(name: str) -> float:
    """Python writes Infinity, although JSON has no such number. Raises ValueError for NaN and -Infinity."""
    if name != "Infinity":
        raise ValueError(f"it has the number {name}")
    return math.inf


def read_json_file(path: Path, expected: type[T]) -> T:
    """Decode `path` as `expected`. Raises ConfigError, naming the file, when it is unreadable, not JSON, nested too
    deeply, or of another shape."""
    try:
        data = path.read_bytes()
        if b"Infinity" in data:
            return msgspec.convert(json.loads(data, parse_constant=_constant), expected)
        return msgspec.json.decode(data, type=expected)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(f"{path} cannot be used: {error}") from error
