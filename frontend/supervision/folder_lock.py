"""A folder that belongs to one server at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paged_serve.protocol.errors import ConfigError

FILE = "server.lock"


@contextmanager
def locked_responses(folder: str) -> Iterator[None]:
    """Context of the only server that uses `folder`, for stored responses; the end of this process releases it, too.

    Another server would resume the responses that the first one computes, and with another model it would fail them.
    Raises ConfigError if the folder is in use or unusable.
    """
    try:
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(Path(folder, FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"--store-responses {folder}: the folder cannot be used: {error}") from None
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            f"--store-responses {folder}: another server uses this folder; give another folder, or stop that server"
        ) from None
    except OSError as error:
        raise ConfigError(f"--store-responses {folder}: {FILE} cannot be locked: {error}") from None
