"""What transfers have moved since the engine core started."""

from dataclasses import dataclass

from paged_serve.protocol.messages.stats import KVTierStats


@dataclass(slots=True)
class TierCounts:
    """Loads, or stores. A block counts once, however many ranks have a share of it."""

    num_transfers: int = 0
    seconds: float = 0.0  # from each transfer's message to the last rank's answer
    blocks: int = 0
    failed_blocks: int = 0

    def ended(self, num_blocks: int, num_failed: int, seconds: float) -> None:
        self.num_transfers += 1
        self.seconds += max(0.0, seconds)
        self.blocks += num_blocks - num_failed
        self.failed_blocks += num_failed


def tier_stats(num_held: int, loads: TierCounts, stores: TierCounts, bytes_of_rank: int, num_ranks: int) -> KVTierStats:
    """`num_held`: shares of blocks in the tiers of all ranks, of `bytes_of_rank` each."""
    return KVTierStats(
        used_bytes=num_held * bytes_of_rank,
        num_loads=loads.num_transfers,
        load_s=loads.seconds,
        loaded_blocks=loads.blocks,
        loaded_bytes=loads.blocks * bytes_of_rank * num_ranks,
        failed_blocks=loads.failed_blocks,
        num_stores=stores.num_transfers,
        store_s=stores.seconds,
        stored_blocks=stores.blocks,
        stored_bytes=stores.blocks * bytes_of_rank * num_ranks,
    )
