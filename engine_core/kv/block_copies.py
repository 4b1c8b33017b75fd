"""The blocks to copy before the forward pass of the step that is being planned."""

from collections.abc import Iterable, Sequence

from .block_pool import BlockPool


class BlockCopies:
    """Sources and destinations. A source has one more owner until the step is planned, so nothing overwrites it before.

    Workers run steps in order: whatever takes the block in a later step comes after the copy.
    """

    def __init__(self, pool: BlockPool):
        self._pool = pool
        self._source_of: dict[int, int] = {}  # destination -> source

    def sources(self, blocks: Iterable[int]) -> list[int]:
        """Where the contents of `blocks` are before the step: a block that is copied in it has none of its own yet."""
        return [self._source_of.get(block, block) for block in blocks]

    def hold(self, sources: Sequence[int]) -> None:
        """Keep `sources` until `take`. Must be called before the destinations are allocated, which may evict blocks."""
        self._pool.share(sources)

    def add(self, sources: Sequence[int], destinations: Iterable[int]) -> None:
        """Copy blocks that were passed to `hold`."""
        self._source_of.update(zip(destinations, sources, strict=True))

    def take(self) -> list[int]:
        """The copies of the step, which has been planned: source, destination, source, and so on."""
        if not self._source_of:
            return []
        pairs = [(source, block) for block, source in self._source_of.items()]
        self._source_of = {}
        self._pool.release([source for source, _ in pairs])
        return [block for pair in pairs for block in pair]
