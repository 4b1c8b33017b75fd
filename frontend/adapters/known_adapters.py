"""The adapters of a server, by name. They are in a file of the run directory, so that all frontends, and those that
replace them, know the same: those of the options as the first frontend read them, and what clients load and unload.

A change holds a lock and replaces the file; a reader compares its version, which is one system call.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from paged_serve.protocol.errors import ConfigError, InvalidRequest, PagedServeError
from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.messages.loading.adapters import Adapter

from .folders import AdapterFolders, named_paths
from .resolvers import Resolver, load_resolvers

FILE = "adapters.json"
MAX_LOADED = 4096  # by clients


class _Shared(msgspec.Struct):
    """`adapters`: what differs from those configured; None: unloaded. `configured` is None until they are read."""

    adapters: dict[str, Adapter | None] = {}
    configured: dict[str, Adapter] | None = None


class NotRecorded(PagedServeError, OSError):
    """The run directory takes no change; nothing has changed."""


class KnownAdapters:
    """`folder`: the run directory; "" if no other process is to know the changes."""

    def __init__(self, config: Config, folder: str = ""):
        self.config = config.lora
        self._folders = AdapterFolders(config.lora.max_lora_rank)
        self._resolvers: tuple[Resolver, ...] = load_resolvers(config.model.plugins)
        self._resolved: dict[str, Adapter] = {}
        self._file = Path(folder, FILE) if folder else None
        self._shared = _Shared()
        self._version = (0, 0, 0)

    @property
    def may_exist(self) -> bool:
        """False if this server knows no adapter and can get none."""
        return bool(self.config.max_loras)

    def read_configured(self) -> None:
        """Read the configured folders, about 1 s per GB, unless a frontend of this server has done so before.

        A folder may be gone by now, or have other contents. Raises ConfigError, naming the adapter at fault.
        """
        if not (paths := named_paths(self.config)):
            return
        with self._locked():
            if self._shared.configured is None:
                configured = {name: self._folders.read(name, path) for name, path in paths.items()}
                self._write(_Shared(self._shared.adapters, configured))

    @property
    def _configured(self) -> dict[str, Adapter]:
        return self._shared.configured or {}

    def all(self) -> Mapping[str, Adapter]:
        """By name: those configured, then those that clients have loaded or plugins have found."""
        self._read()
        changed = {**self._configured, **self._resolved, **self._shared.adapters}
        return {name: adapter for name, adapter in changed.items() if adapter is not None}

    def get(self, name: str) -> Adapter | None:
        """The adapter of this name, if it is known."""
        if not self.may_exist:
            return None
        self._read()
        if name in self._shared.adapters:
            return self._shared.adapters[name]
        return self._configured.get(name) or self._resolved.get(name)

    @property
    def may_resolve(self) -> bool:
        return bool(self._resolvers) and self.may_exist

    def resolve(self, name: str) -> Adapter | None:
        """Ask the plugins for an unknown name; may take long. Raises ConfigError if the folder cannot be used."""
        for resolver in self._resolvers:
            if (path := resolver(name)) is not None:
                adapter = self._resolved[name] = self._folders.read(name, path)
                return adapter
        return None

    def load(self, name: str, path: str, *, in_place: bool = False) -> Adapter:
        """Make an adapter known to all frontends; may take long.

        Raises InvalidRequest if the name is in use, ConfigError if the folder cannot be used, NotRecorded.
        """
        if not in_place:
            self._check_free(name)
        adapter = self._folders.read(name, path)
        with self._locked():
            if not in_place:
                self._check_free(name)
            if len(self._shared.adapters) >= MAX_LOADED:
                raise InvalidRequest(
                    f"clients have loaded {MAX_LOADED} LoRA adapters, the limit; unload one first", "lora_name"
                )
            self._change({**self._shared.adapters, name: adapter})
        return adapter

    def unload(self, name: str) -> bool:
        """Forget an adapter; running requests keep it. False if it is not known. Raises NotRecorded."""
        with self._locked():
            if self.get(name) is None:
                return False
            changed = {other: adapter for other, adapter in self._shared.adapters.items() if other != name}
            self._change({**changed, name: None} if name in self._configured else changed)
            self._resolved.pop(name, None)
        return True

    def _check_free(self, name: str) -> None:
        if self.get(name) is not None:
            raise InvalidRequest(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True.",
                "lora_name",
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Other frontends wait; the changes are current."""
        if self._file is None:
            yield
            return
        path = self._file.with_suffix(".lock")
        with _change_in(path.parent):
            path.touch()
        with open(path, "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._read()
            yield

    def _read(self) -> None:
        if self._file is None:
            return
        try:
            found = os.stat(self._file)
        except FileNotFoundError:
            return
        version = found.st_ino, found.st_size, found.st_mtime_ns
        if version != self._version:
            try:
                self._shared = msgspec.json.decode(self._file.read_bytes(), type=_Shared)
            except msgspec.DecodeError as error:
                raise ConfigError(f"{self._file} cannot be read: {error}") from error
            self._version = version

    def _change(self, adapters: dict[str, Adapter | None]) -> None:
        self._write(_Shared(adapters, self._shared.configured))

    def _write(self, shared: _Shared) -> None:
        """Nothing changes if the file cannot be written: all frontends know the same."""
        if self._file is not None:
            new = self._file.with_suffix(".new")
            with _change_in(new.parent):
                new.write_bytes(msgspec.json.encode(shared))
                new.replace(self._file)
        self._shared = shared


@contextmanager
def _change_in(run_dir: Path) -> Iterator[None]:
    """Context for a change of the files; names the folder, as the error of a failed write does not."""
    try:
        yield
    except OSError as error:
        raise NotRecorded(
            f"the LoRA adapters cannot be recorded in the run directory {run_dir}: {error}; free space there and "
            "try again"
        ) from error
