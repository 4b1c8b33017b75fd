"""The folders of one rank's blocks, one in memory and one on disk, as if they were one."""

from collections.abc import Iterable, Sequence

from paged_serve.protocol.messages.loading.kv_tiers import MAX_KEYS

from .block_files import BlockFiles
from .block_memory import Parts
from .checksum import Checksum


class TierLevels:
    """Every block is stored on all levels, each of which evicts by its own budget; the first that has it is read."""

    def __init__(self, levels: Sequence[BlockFiles]):
        """`levels`: the quickest first, at least one."""
        self._levels = levels

    def __len__(self) -> int:
        """The blocks of the level that has most."""
        return max(map(len, self._levels))

    def __contains__(self, key: bytes) -> bool:
        return any(key in level for level in self._levels)

    @property
    def is_full(self) -> bool:
        """Whether an error ended storing on every level."""
        return all(level.is_full for level in self._levels)

    def keys(self) -> list[bytes]:
        """At most MAX_KEYS of them, those of the first level last."""
        known = [key for level in reversed(self._levels) for key in [*level.keys()]]
        return list(dict.fromkeys(known))[-MAX_KEYS:]

    def make_room(self, count: int) -> list[bytes]:
        """Remove files until `count` more may be written on each level; returns the keys that no level has any more."""
        removed = dict.fromkeys(key for level in self._levels for key in level.make_room(count))
        return [key for key in removed if key not in self]

    def remove(self, keys: Iterable[bytes]) -> list[bytes]:
        """Remove these files; returns the keys of those that were known."""
        keys = list(keys)
        return list(dict.fromkeys(key for level in self._levels for key in level.remove(keys)))

    def write(self, key: bytes, block: Parts, checksum: Checksum) -> bool:
        """Whether a level has stored it."""
        stored = [level.write(key, block, checksum) for level in self._levels]
        return any(stored)

    def read(self, key: bytes, block: Parts, checksum: Checksum) -> bool:
        """Fill `block` from the first level that has it undamaged."""
        return any(key in level and level.read(key, block, checksum) for level in self._levels)
