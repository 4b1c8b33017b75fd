"""A result as a file for programs."""

from pathlib import Path
from typing import Any

import msgspec

from paged_serve.protocol.errors import ConfigError

from .machine import circumstances


def write_json(path: str | None, bench: str, config: dict[str, Any], result: Any) -> None:
    """One JSON object: the bench, what it was asked to do, what came out, where and when. Raises ConfigError."""
    if path is None:
        return
    report = {"bench": bench, **circumstances(), "config": config, "result": result}
    write_file(path, msgspec.json.format(msgspec.json.encode(report)) + b"\n")


def write_file(path: str, data: bytes) -> None:
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
