"""Files of a model folder in JSON: read as what they should hold, or refused by name."""

from pathlib import Path
from typing import TypeVar

import msgspec

from .errors import ConfigError

T = TypeVar("T")


def read_json_file(path: Path, expected: type[T]) -> T:
    """Raises ConfigError naming the file when it cannot be read, is no JSON, too deeply nested, or not as expected."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=expected)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be used: {error}") from error
