"""Reads PEFT folders of LoRA adapters: the configuration, the bytes of the weights, and a digest of both.

The digest is sha256 over the fields of adapter_config.json that results depend on, as JSON, and all of
adapter_model.safetensors. The frontend computes it from a path; a worker, again from the bytes that it loads.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from .errors import ConfigError

CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapter_model.safetensors"
MAX_CONFIG_BYTES: Final = 1 << 20
MAX_WEIGHTS_BYTES: Final = 64 << 30
CHUNK_BYTES: Final = 1 << 20

Rank = Annotated[int, Meta(ge=1, le=2**20)]
Alpha = Annotated[float, Meta(ge=-1e6, le=1e6)]


class AdapterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What results depend on in adapter_config.json. Other fields (targets, dropout, the base's name) are not kept."""

    peft_type: str
    r: Rank
    lora_alpha: Alpha = 8.0
    use_rslora: bool = False  # B A is scaled by alpha / sqrt(r) instead of alpha / r
    rank_pattern: dict[str, Rank] | None = None  # by the end of a module's name; the first that matches counts
    alpha_pattern: dict[str, Alpha] | None = None
    fan_in_fan_out: bool = False
    bias: str = "none"
    modules_to_save: list[str] | None = None
    use_dora: bool = False
    lora_bias: bool = False
    init_lora_weights: bool | str | None = True
    layer_replication: Any = None
    trainable_token_indices: Any = None
    target_parameters: Any = None
    alora_invocation_tokens: Any = None
    use_qalora: bool = False

    def canonical(self) -> bytes:
        """JSON of all fields, equal for equal results. Patterns keep their order, because the first match counts."""
        fields = msgspec.structs.asdict(self)
        for name in ("rank_pattern", "alpha_pattern"):
            fields[name] = list((fields[name] or {}).items())
        return msgspec.json.encode(fields, order="deterministic")


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Raises ConfigError, naming the file, if it is absent, larger than 1 MiB, or not the configuration of a LoRA."""
    path = folder / CONFIG_FILE
    with _opened(path, MAX_CONFIG_BYTES) as (file, _):
        data = file.read(MAX_CONFIG_BYTES)
    try:
        config = msgspec.json.decode(data, type=AdapterConfig, strict=False)
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(f"{path} cannot be used: {error}") from error
    if config.peft_type != "LORA":
        raise ConfigError(f"{path}: peft_type is {config.peft_type[:64]!r}; only LORA is supported")
    return config


def adapter_digest(folder: Path) -> str:
    """The digest of the folder, 64 hexadecimal digits. Reads the whole file of weights, about 1 s per GB.

    Raises ConfigError as read_adapter_config does, and if the file of weights is absent or no ordinary file.
    """
    digest = _digest_of(read_adapter_config(folder))
    with _opened(folder / WEIGHTS_FILE, MAX_WEIGHTS_BYTES) as (file, _):
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return str(digest.hexdigest())


def read_adapter_weights(folder: Path, config: AdapterConfig) -> tuple[bytearray, str]:
    """The bytes of the folder's safetensors file, and the digest of these bytes and of `config`.

    Raises ConfigError if the file is absent, no ordinary file, larger than MAX_WEIGHTS_BYTES, or shrinks meanwhile.
    """
    path = folder / WEIGHTS_FILE
    with _opened(path, MAX_WEIGHTS_BYTES) as (file, size):
        data = bytearray(size)
        filled = 0
        while count := file.readinto(memoryview(data)[filled:]):
            filled += count
    if filled != size:
        raise ConfigError(f"{path} has {filled} bytes, but had {size} when it was opened")
    digest = _digest_of(config)
    digest.update(data)
    return data, str(digest.hexdigest())


def _digest_of(config: AdapterConfig) -> Any:
    fields = config.canonical()
    return hashlib.sha256(b"paged-serve/1 adapter %d " % len(fields) + fields)


@contextmanager
def _opened(path: Path, max_bytes: int) -> Iterator[tuple[FileIO, int]]:
    """The open file and its size. A pipe or a device is refused without waiting for it."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"{path} is not a file")
            if found.st_size > max_bytes:
                raise ConfigError(f"{path} has {found.st_size} bytes; at most {max_bytes} are accepted")
            yield file, found.st_size
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
