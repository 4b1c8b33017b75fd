"""Makes a rank's tier from its configuration, model and cache."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config

from ..checkpoint.weight_files import weight_files
from ..kernels.cpu.library import Library
from ..kv.kv_cache import KVCache
from .block_memory import block_memory
from .checksum import checksum
from .identity import folder_of
from .tier import Mover, Tier


def open_tier(
    config: Config,
    model: Path,
    facts: tuple[object, ...],
    cache: KVCache,
    rank: int,
    library: Library | None,
    cpus: Sequence[int],
) -> Tier:
    """`facts`: see folder_of. The folder is opened in a thread of the tier, from now on.

    Raises ConfigError on a device of a plugin.
    """
    device = cache.blocks[0].device.type
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"kv_tier.dir={config.kv_tier.dir} needs a CPU or CUDA device, not {device}; leave it out")
    root = Path(config.kv_tier.dir)
    folder = partial(folder_of, root, config, model, weight_files(model), facts)

    def new_mover() -> Mover:
        return Mover(block_memory(cache), checksum(library))

    return Tier(rank, folder, new_mover, config.kv_tier.max_bytes, cpus)
