"""From an adapter's name and folder to the record that requests carry."""

import os
from pathlib import Path

import msgspec

from paged_serve.protocol.adapter_folder import CONFIG_FILE, WEIGHTS_FILE, adapter_digest, read_adapter_config
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config, LoraConfig
from paged_serve.protocol.messages.loading.adapters import Adapter
from paged_serve.protocol.messages.message import has_half_pair
from paged_serve.protocol.plugins import PluginKind, plugin_names

DEFAULT_MAX_LORAS = 8  # if the configuration names adapters, or a way to get some
MAX_NAME_CHARS = 256


def read_adapter(name: str, path: str, max_rank: int) -> Adapter:
    """Read the folder, about 1 s per GB. Raises ConfigError, naming the adapter and its file at fault."""
    folder = Path(_absolute(name, path))
    try:
        config = read_adapter_config(folder)
        if config.r > max_rank:
            raise ConfigError(f"its rank is {config.r}; this server accepts at most {max_rank}. Raise --max-lora-rank")
        return Adapter(name, str(folder), adapter_digest(folder))
    except ConfigError as error:
        raise ConfigError(f"LoRA adapter {name!r}: {error}") from None


class AdapterFolders:
    """Reads folders, each once while its files do not change."""

    def __init__(self, max_rank: int):
        self._max_rank = max_rank
        self._digests: dict[tuple[str, tuple[int, ...]], str] = {}

    def read(self, name: str, path: str) -> Adapter:
        """Raises ConfigError as `read_adapter` does."""
        folder = _absolute(name, path)
        key = folder, _version_of(folder)
        if (digest := self._digests.get(key)) is None:
            adapter = read_adapter(name, folder, self._max_rank)
            self._digests[key] = adapter.digest
            return adapter
        return Adapter(name, folder, digest)


def named_paths(config: LoraConfig) -> dict[str, str]:
    """The configured adapters, name to path. Raises ConfigError for an entry that is not NAME=PATH or vLLM's JSON."""
    found: dict[str, str] = {}
    for entry in config.adapters:
        name, path = _named_path(entry)
        if found.setdefault(name, path) != path:
            raise ConfigError(f"--lora {name}: the name is given twice, for {found[name]} and {path}")
    return found


def with_adapters(config: Config) -> Config:
    """`config` with absolute paths and a number of places. Raises ConfigError for names that cannot be served."""
    lora, paths = config.lora, named_paths(config.lora)
    for name in paths:
        if name in config.model.served_model_names:
            raise ConfigError(f"--lora {name}: the base model has this name; choose another, or --served-model-name")
    resolves = bool(plugin_names(PluginKind.LORA_RESOLVER, config.model.plugins))
    wants_places = bool(paths) or lora.enabled or lora.allow_loading or resolves
    absolute = tuple(_entry(name, _absolute(name, path)) for name, path in paths.items())
    max_loras = lora.max_loras or (DEFAULT_MAX_LORAS if wants_places else 0)
    return msgspec.structs.replace(config, lora=msgspec.structs.replace(lora, adapters=absolute, max_loras=max_loras))


def _absolute(name: str, path: str) -> str:
    """The folder at `path`, without links. Raises ConfigError if a message cannot carry the name or the folder."""
    if not name or len(name) > MAX_NAME_CHARS:
        raise ConfigError(f"a LoRA adapter's name has 1 to {MAX_NAME_CHARS} characters; {name[:40]!r} has {len(name)}")
    path = os.fspath(path)  # plugins and clients may give a pathlib.Path
    is_path = "\0" not in path
    folder = os.path.realpath(os.path.expanduser(path)) if is_path else path
    if not is_path or has_half_pair(name) or has_half_pair(folder):
        raise ConfigError(
            f"LoRA adapter {name!a}: its name and path are UTF-8 without NUL; this path is {folder!a:.200}"
        )
    return folder


def _entry(name: str, path: str) -> str:
    """The option for an adapter; in JSON if NAME=PATH would be read as another name."""
    is_plain = "=" not in name and not name.startswith("{")
    return f"{name}={path}" if is_plain else msgspec.json.encode({"name": name, "path": path}).decode()


def _named_path(entry: str) -> tuple[str, str]:
    if entry.startswith("{"):
        try:
            fields = msgspec.json.decode(entry, type=dict[str, str | None])
        except msgspec.DecodeError as error:
            raise ConfigError(f"--lora {entry:.100}: {error}") from None
        name, path = fields.get("name") or "", fields.get("path") or ""
    else:
        name, _, path = entry.partition("=")
    if not name or not path:
        raise ConfigError(f"--lora {entry:.100}: write NAME=PATH, the path of a PEFT folder")
    return name, path


def _version_of(folder: str) -> tuple[int, ...]:
    """Changes when a file of the folder is written or replaced; empty if one is absent."""
    try:
        stats = [os.stat(os.path.join(folder, name)) for name in (CONFIG_FILE, WEIGHTS_FILE)]
    except OSError:
        return ()
    return tuple(number for found in stats for number in (found.st_ino, found.st_size, found.st_mtime_ns))
