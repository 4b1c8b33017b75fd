"""Stamps of the files that results depend on: a process that replaces another must read what the first one has read.

The supervisor takes the stamps before it starts the first process. A process that reads the files compares them before
and after, so that no change in between escapes it.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ..errors import ConfigError
from ..messages.config import Config
from ..messages.control import FileStamp


def stamp_of(path: Path) -> FileStamp:
    """The stamp of the file at `path`, which may be absent. Links are followed.

    Size and time are what rsync and make compare, too. Inode numbers are not stable in all network file systems, and
    a backup by hard links or a change of the owner changes the ctime of unchanged contents.
    """
    try:
        found = path.stat()
    except OSError:
        return FileStamp(str(path), "")
    return FileStamp(str(path), f"{found.st_size} bytes of {found.st_mtime_ns} ns")


def check_unchanged(stamps: Iterable[FileStamp]) -> None:
    """Raise ConfigError, naming the file, if one was written, replaced, removed or added since its stamp was taken."""
    for stamp in stamps:
        now = stamp_of(Path(stamp.path))
        if now != stamp:
            change = "added" if not stamp.version else "removed" if not now.version else "changed"
            raise ConfigError(
                f"{stamp.path} was {change} after the server had started: a process that reads it now would give other "
                "results than those before it. Start the server again"
            )


def model_digest(config: Config, stamps: Iterable[FileStamp]) -> str:
    """Differs between servers if their files or settings of the model do."""
    settings = msgspec.json.encode((tuple(stamps), config.model, config.cache.kv_cache_dtype))
    return hashlib.sha256(settings).hexdigest()[:32]


@contextmanager
def unchanged(stamps: Iterable[FileStamp]) -> Iterator[None]:
    """In this context the files are read. Raises ConfigError if they are not those of the stamps.

    That is also the better explanation of any error while files change.
    """
    check_unchanged(stamps)
    try:
        yield
    except Exception:
        check_unchanged(stamps)
        raise
    check_unchanged(stamps)
