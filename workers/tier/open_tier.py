"""Makes a rank's tier from its configuration, model and cache."""

import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.transport.run_dir import SHARED_MEMORY, make_memory_dir

from ..checkpoint.weight_files import weight_files
from ..kernels.cpu.library import Library
from ..kv.kv_cache import KVCache
from .block_memory import block_memory
from .checksum import Checksum, checksum
from .identity import folder_of
from .tier import Mover, Tier

log = logging.getLogger(__name__)


def open_tier(
    config: Config,
    model: Path,
    facts: tuple[object, ...],
    cache: KVCache,
    rank: int,
    library: Library | None,
    cpus: Sequence[int],
    run_dir: str,
) -> Tier:
    """`facts`: see folder_of. The folders are opened in a thread of the tier, from now on.

    Raises ConfigError on a device of a plugin, and if the host's memory is too small for `kv_tier.host_bytes`.
    """
    device = cache.blocks[0].device.type
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"a KV tier needs a CPU or CUDA device, not {device}; leave out its options")

    if config.kv_tier.host_bytes:
        _check_memory(config.kv_tier.host_bytes, config.parallel.tensor_parallel_size)

    def new_mover() -> Mover:
        return Mover(block_memory(cache), checksum(library))

    return Tier(rank, partial(_find_folders, config, model, facts, run_dir), new_mover, cpus)


def _find_folders(
    config: Config, model: Path, facts: tuple[object, ...], run_dir: str, checksum: Checksum
) -> list[tuple[Path, int]]:
    """The folder of each level that can be used and its bytes, the nearest level first."""
    settings, found = config.kv_tier, list[tuple[Path, int]]()

    def add(root: Callable[[], Path], max_bytes: int) -> None:
        try:
            if found:  # the weights are not read again for the same name
                folder = root() / found[0][0].name
            else:
                folder = folder_of(root(), config, model, weight_files(model), facts, checksum)
            found.insert(0, (folder, max_bytes))
        except OSError as error:
            log.error("a level of the KV tier cannot be used: %s", error)

    if settings.dir:
        add(lambda: Path(settings.dir), settings.max_bytes)
    if settings.host_bytes:
        add(lambda: make_memory_dir(run_dir), settings.host_bytes)
    return found


def _check_memory(host_bytes: int, num_ranks: int) -> None:
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError as error:
        raise ConfigError(f"kv_tier_host_bytes={host_bytes} needs {SHARED_MEMORY}: {error.strerror}") from error
    size = found.f_blocks * found.f_frsize
    if host_bytes * num_ranks > size:
        raise ConfigError(
            f"kv_tier_host_bytes={host_bytes} of {num_ranks} ranks do not fit in {SHARED_MEMORY} of {size} bytes; use "
            f"at most {size // num_ranks}, or make it larger (docker run --shm-size=16g)"
        )
