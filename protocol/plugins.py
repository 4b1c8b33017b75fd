"""Plugins from other packages: each kind is a group of entry points (packaging.python.org, "Entry points
specification"). A plugin is loaded when the configuration names it, never because its package is installed."""

import hashlib
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from .errors import ConfigError
from .messages.config import ModelConfig

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints


class PluginKind(Enum):
    """The group of entry points; the comment says what an entry point refers to."""

    FAMILY = "paged_serve.families"  # workers.models.families.family.Family
    PLATFORM = "paged_serve.platforms"  # workers.process.platform.Platform
    LOGITS_PROCESSOR = "paged_serve.logits_processors"  # a class, workers.sampling.logits_processors.LogitsProcessor
    TOOL_PARSER = "paged_serve.tool_parsers"  # frontend.parsers.formats.ToolFormat
    REASONING_PARSER = "paged_serve.reasoning_parsers"  # frontend.parsers.formats.ReasoningFormat
    IO_PROCESSOR = "paged_serve.io_processors"  # a class, frontend.pooling.io_processors.IOProcessor
    LORA_RESOLVER = "paged_serve.lora_resolvers"  # a function, frontend.adapters.resolvers.Resolver
    STAT_LOGGER = "paged_serve.stat_loggers"  # a class, frontend.http.server.stat_loggers.StatLogger


CODE = (".py", ".so")  # files of a package that its results depend on

Loaded = TypeVar("Loaded")


def check_plugins(config: ModelConfig) -> None:
    """Raise ConfigError for a plugin name that no installed package provides. Imports no plugin."""
    if config.plugins:
        _check("--plugin", config.plugins, tuple(PluginKind))
    if config.platform:
        _check("--platform", (config.platform,), (PluginKind.PLATFORM,))


def plugin_names(kind: PluginKind, names: tuple[str, ...]) -> frozenset[str]:
    """The names of this kind that installed packages provide. Imports no plugin."""
    return frozenset(_entries(kind, names))


def load_plugins(kind: PluginKind, names: tuple[str, ...], expected: type[Loaded]) -> dict[str, Loaded]:
    """Import the plugins of this kind; each value is an instance of `expected`.

    Raises ConfigError for a plugin that cannot be imported or has another type.
    """
    loaded = {}
    for name, entry in _entries(kind, names).items():
        try:
            found = entry.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"--plugin {name}: {entry.value} cannot be imported: {error}") from error
        if not isinstance(found, expected):
            raise ConfigError(f"--plugin {name}: {entry.value} is {found!r:.100}; it must be a {expected.__name__}")
        loaded[name] = found
    return loaded


def digest_of_code(names_by_kind: Iterable[tuple[PluginKind, tuple[str, ...]]]) -> str:
    """A digest of the code of the packages that provide these plugins; "" if none does. Imports no plugin.

    An empty name is no plugin.
    """
    named = ((kind, tuple(filter(None, names))) for kind, names in names_by_kind)
    entries = [entry for kind, names in named for entry in _entries(kind, names).values()]
    if not entries:
        return ""
    found = hashlib.sha256()
    for package in sorted({entry.module.partition(".")[0] for entry in entries}):
        for folder, path in _code(package):
            found.update(f"{package} {path.relative_to(folder)} ".encode() + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def _code(package: str) -> list[tuple[Path, Path]]:
    """(folder, file) of all code of a package, which may be one file, or parts in several folders."""
    from importlib.util import find_spec

    spec = find_spec(package)
    if spec is None:  # loading it reports it
        return []
    if spec.submodule_search_locations is None:
        return [(Path(spec.origin).parent, Path(spec.origin))] if spec.has_location and spec.origin else []
    folders = map(Path, spec.submodule_search_locations)
    files = ((folder, path) for folder in folders for path in folder.rglob("*"))
    return sorted((folder, path) for folder, path in files if path.suffix in CODE and path.is_file())


def _check(flag: str, names: tuple[str, ...], kinds: tuple[PluginKind, ...]) -> None:
    found = {entry.name for kind in kinds for entry in _installed(kind.value)}
    for name in names:
        if name not in found:
            installed = ", ".join(sorted(found)) or "none"
            raise ConfigError(f"{flag} {name}: no installed package provides it; installed plugins: {installed}")


def _entries(kind: PluginKind, names: tuple[str, ...]) -> dict[str, "EntryPoint"]:
    """Entry points by name, in the order of `names`. Raises ConfigError for a name that two packages provide."""
    if not names:
        return {}
    entries: dict[str, EntryPoint] = {}
    for entry in _installed(kind.value):
        if (other := entries.setdefault(entry.name, entry)).value != entry.value:
            raise ConfigError(f"--plugin {entry.name}: two packages provide it, as {other.value} and {entry.value}")
    return {name: entries[name] for name in names if name in entries}


def _installed(group: str) -> "EntryPoints":
    from importlib.metadata import entry_points  # imported here: it takes as long as all of `serve --help`

    return entry_points(group=group)
