"""Records what enters and leaves the prefix cache, for followers outside the server. It does no input or output."""

from collections.abc import Sequence

from paged_serve.protocol.block_hash import TOKEN_BYTES
from paged_serve.protocol.kv_events.messages import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from paged_serve.protocol.messages.loading.adapters import Adapter
from paged_serve.protocol.messages.message import unpack_ids

from .kv_group import group_of


class KVEvents:
    """The events since the last `take`, and what a snapshot needs of every block that can be found."""

    def __init__(self, block_size: int):
        self._block_size = block_size  # tokens
        # key of a block -> the hash before it, its tokens, their adapter
        self._found: dict[bytes, tuple[bytes, bytes, Adapter | None]] = {}
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
        by_group: dict[int, list[bytes]] = {}
        for key in keys:
            del self._found[key]
            block_hash, group = group_of(key)
            by_group.setdefault(group, []).append(block_hash)
        self._events += [BlockRemoved(hashes, group_idx=group) for group, hashes in by_group.items()]

    def cleared(self) -> None:
        """All blocks are lost; so are the events that nothing outside has read."""
        self._found.clear()
        self._events = [AllBlocksCleared()]

    def take(self) -> list[KVEvent]:
        """The events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def snapshot(self) -> list[KVEvent]:
        """Events that lead from any index to that of the last `take`, which must have left none."""
        assert not self._events, "events that were not taken"
        blocks = (self._stored([key], *block) for key, block in self._found.items())
        return [AllBlocksCleared(), *blocks]

    def check(self, keys: "set[bytes]") -> None:
        """Raise AssertionError unless exactly the blocks with these keys can be found."""
        assert self._found.keys() == keys, "the events differ from the prefix cache"

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
