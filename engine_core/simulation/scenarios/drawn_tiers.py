"""Draws whether the workers of a simulation have a tier."""

import random

from msgspec.structs import replace

from paged_serve.protocol.messages.config import Config, KVTierConfig, ParallelConfig


def with_tiers(config: Config, worker_death: float, rng: random.Random) -> tuple[Config, float]:
    """A third have a tier, of one rank or two, and more deaths of workers, after which sequences are loaded."""
    num_ranks = rng.choice((0, 0, 0, 0, 1, 2))
    if not num_ranks:
        return config, worker_death
    parallel = ParallelConfig(tensor_parallel_size=num_ranks)
    return replace(config, kv_tier=KVTierConfig(dir="simulated"), parallel=parallel), max(
        worker_death, rng.choice((0.0, 0.005, 0.03))
    )
