"""The prefix cache: full blocks are found again by the chain of hashes over their tokens and all tokens before them."""

from paged_serve.protocol.block_hash import chain_blocks

from ..requests.request import Sequence
from .block_pool import BlockPool


class PrefixCache:
    """Finds and publishes the full blocks of sequences in `pool`."""

    def __init__(self, pool: BlockPool, block_size: int, enabled: bool):
        self.enabled = enabled
        self._pool = pool
        self._block_size = block_size  # tokens

    def hash_blocks(self, sequence: Sequence, num_tokens: int) -> None:
        """Extend the sequence's hashes to all full blocks among its first `num_tokens` tokens."""
        hashes = sequence.block_hashes
        start, end = len(hashes) * self._block_size, num_tokens - num_tokens % self._block_size
        if self.enabled and end > start:
            parent = hashes[-1] if hashes else sequence.request.chain_root
            hashes += chain_blocks(parent, sequence.token_bytes(start, end), self._block_size)

    def find(self, sequence: Sequence, sibling: Sequence | None, limit: int) -> list[int]:
        """The blocks of the longest prefix that exists already, at most `limit` long.

        `sibling` runs and has planned the common prompt.
        """
        found: list[int] = []
        if self.enabled and sequence.may_read_cache:
            found = self._pool.find(sequence.block_hashes[:limit])
        if sibling is not None and not sequence.num_nans:
            num_common = min(limit, sequence.request.num_shareable_tokens(self._block_size) // self._block_size)
            num_common = min(num_common, self._pool.num_valid(sibling.block_ids))
            if num_common > len(found):
                found = sibling.block_ids[:num_common]
        return found

    def publish(self, sequence: Sequence, num_tokens: int) -> None:
        """Let others find the full blocks among the first `num_tokens` tokens, whose results were applied."""
        if not self.enabled:
            return
        start, end = sequence.num_published, num_tokens // self._block_size
        if end > start:
            self.hash_blocks(sequence, num_tokens)
            self._pool.publish(sequence.block_ids[start:end], sequence.block_hashes[start:end])
            sequence.num_published = end

    def invalidate_hashes(self, sequence: Sequence) -> None:
        """As `KVCache.invalidate`, for a sequence without blocks, or with others: what it left behind may hold NaN."""
        self._pool.invalidate_hashes(sequence.block_hashes)
