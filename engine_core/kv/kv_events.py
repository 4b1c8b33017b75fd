"""Records what enters and leaves the prefix cache and the tiers, for followers outside. It does no input or output."""

from collections.abc import Iterable, Iterator, Sequence

from paged_serve.protocol.block_hash import TOKEN_BYTES
from paged_serve.protocol.kv_events.messages import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from paged_serve.protocol.messages.loading.adapters import Adapter
from paged_serve.protocol.messages.message import unpack_ids

from .kv_group import group_of

MOST_HASHES = 256  # in an event of a tier, which may have a million blocks


class KVEvents:
    """The events since the last `take`, and what a snapshot needs of every block that can be found."""

    def __init__(self, block_size: int):
        self._block_size = block_size  # tokens
        # key of a block -> the hash before it, its tokens, their adapter
        self._found: dict[bytes, tuple[bytes, bytes, Adapter | None]] = {}
        self._in_tiers: dict[str, dict[bytes, None]] = {}  # medium -> keys, in the order of storing
        self._events: list[KVEvent] = [AllBlocksCleared()]  # followers may know the blocks of an earlier engine core

    def stored(self, keys: Sequence[bytes], parent: bytes, token_bytes: bytes, adapter: Adapter | None = None) -> None:
        """Blocks that follow each other, after the one with the hash `parent`, can be found by these pool keys.

        `adapter`: None for the base model.
        """
        stride = self._block_size * TOKEN_BYTES
        assert len(token_bytes) == len(keys) * stride
        before = parent
        for index, key in enumerate(keys):
            self._found[key] = before, token_bytes[index * stride : (index + 1) * stride], adapter
            before, _ = group_of(key)
        self._events.append(self._stored(keys, parent, token_bytes, adapter))

    def removed(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            del self._found[key]
        self._events += [BlockRemoved(hashes, group_idx=group) for group, hashes in _by_group(keys).items()]

    def stored_in_tier(self, keys: Sequence[bytes], medium: str) -> None:
        """These blocks can be loaded."""
        self._in_tiers.setdefault(medium, {}).update(dict.fromkeys(keys))
        self._events += self._stored_in_tier(keys, medium)

    def removed_from_tier(self, keys: Sequence[bytes], medium: str) -> None:
        for key in keys:
            del self._in_tiers[medium][key]
        self._events += [BlockRemoved(hashes, medium, group) for group, hashes in _by_group(keys).items()]

    def cleared(self) -> None:
        """All blocks are lost; so are the events that nothing outside has read."""
        self._found.clear()
        self._in_tiers.clear()
        self._events = [AllBlocksCleared()]

    def take(self) -> list[KVEvent]:
        """The events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def snapshot(self) -> list[KVEvent]:
        """Events that lead from any index to that of the last `take`, which must have left none."""
        assert not self._events, "events that were not taken"
        blocks = (self._stored([key], *block) for key, block in self._found.items())
        in_tiers = (event for medium, keys in self._in_tiers.items() for event in self._stored_in_tier(keys, medium))
        return [AllBlocksCleared(), *blocks, *in_tiers]

    def check(self, keys: set[bytes]) -> None:
        """Raise AssertionError unless exactly the blocks with these keys can be found."""
        assert self._found.keys() == keys, "the events differ from the prefix cache"

    def check_tier(self, keys: set[bytes], medium: str) -> None:
        """Raise AssertionError unless exactly the blocks with these keys can be loaded."""
        assert self._in_tiers.get(medium, {}).keys() == keys, "the events differ from the tier"

    def _stored_in_tier(self, keys: Iterable[bytes], medium: str) -> Iterator[BlockStored]:
        for group, hashes in _by_group(keys).items():
            for start in range(0, len(hashes), MOST_HASHES):
                part = hashes[start : start + MOST_HASHES]
                yield BlockStored(part, None, [], self._block_size, medium=medium, group_idx=group)

    def _stored(self, keys: Sequence[bytes], parent: bytes, token_bytes: bytes, adapter: Adapter | None) -> BlockStored:
        hashes, groups = zip(*map(group_of, keys), strict=True)
        return BlockStored(
            block_hashes=list(hashes),
            parent_block_hash=parent,
            token_ids=unpack_ids(token_bytes).tolist(),
            block_size=self._block_size,
            lora_id=None if adapter is None else int(adapter.digest[:8], 16) >> 1,  # the same in every core
            lora_name=None if adapter is None else adapter.name,
            group_idx=groups[0],
        )


def _by_group(keys: Iterable[bytes]) -> dict[int, list[bytes]]:
    """The hashes of these keys, by KV group."""
    hashes: dict[int, list[bytes]] = {}
    for key in keys:
        block_hash, group = group_of(key)
        hashes.setdefault(group, []).append(block_hash)
    return hashes
