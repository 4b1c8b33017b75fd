"""A head that drafts from the target's hidden states: on rank 0, on the same threads, with a KV cache of its own."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec import structs
from numpy.typing import NDArray
from torch import Tensor

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config, SchedulerConfig

from ...batch.input_batch import InputBatch
from ...kernels.cpu.library import Pool
from ...kv.budget import max_model_len
from ...kv.kv_cache import KVCache
from ...layers.model import Model
from ...models.decoder import Model as Decoder
from ...models.heads.eagle3 import Eagle3Head
from ...models.heads.eagle3_loading import load_eagle3, tapped_layers
from ...models.taps import Taps
from ...speculation.model_drafters.head_drafter import HeadDrafter
from .draft_model import draft_blocks


@dataclass(frozen=True, slots=True, eq=False)
class DraftHead:
    """The loaded head, and the size of its cache."""

    head: Eagle3Head
    target: Decoder
    num_blocks: int
    block_size: int
    cache_bytes: int  # with the copies of the target's hidden states

    @classmethod
    def load(cls, config: Config, target: Model, pool: Pool | None, free_bytes: int) -> "DraftHead":
        """Load the configured head. `free_bytes` are free before that, for its weights and its cache.

        Raises ConfigError, with the setting's name, if the folder is missing, or its head cannot draft for `target`.
        """
        folder = Path(config.speculation.draft_model)
        named = f"speculation.draft_model={folder}"
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{named}: there is no {folder.absolute() / 'config.json'}; give a local head")
        if type(target) is not Decoder:
            raise ConfigError(f"{named}: this model's layers do not give their hidden states; use --speculative draft")
        if "generate" not in target.pooling.spec.tasks:
            raise ConfigError(f"{named}: the model generates no tokens, so there is nothing to draft")
        own = structs.replace(config.model, model=str(folder), tokenizer="", packed_weights_dir="")
        try:
            head = load_eagle3(folder, own, target, pool)
        except ConfigError as error:
            raise ConfigError(f"{named}: {error}") from error
        longest, free_bytes = max_model_len(config, target.geometry), free_bytes - head.weights_bytes
        num_blocks, block_size, cache_bytes = draft_blocks(config, named, head.geometry, longest, free_bytes)
        layers = len(set(tapped_layers(target.geometry.num_layers)))
        of_taps = layers * _most_tokens(config.scheduler) * target.geometry.hidden_size * target.dtype.itemsize
        return cls(head, target, num_blocks, block_size, cache_bytes + of_taps)

    def drafter(self, scheduler: SchedulerConfig) -> HeadDrafter:
        """Allocate the cache, and open the target's taps. Raises ConfigError if memory is short."""
        cache = KVCache.allocate(self.head.geometry, self.num_blocks, self.block_size)
        geometry, most = self.target.geometry, _most_tokens(scheduler)
        self.target.taps.open(tapped_layers(geometry.num_layers), geometry.hidden_size, geometry.dtype, most)
        return HeadDrafter(CachedHead(self.head, cache, self.target.taps), self.num_blocks, self.block_size)


class CachedHead:
    """The Head of HeadDrafter."""

    def __init__(self, head: Eagle3Head, cache: KVCache, taps: Taps):
        self._head = head
        self._cache = cache
        self._taps = taps

    def observed(self, num_tokens: int) -> Tensor:
        return self._taps.last(num_tokens)

    def joined(self, observed: Tensor) -> Tensor:
        return self._head.joined(observed)

    def forward(self, batch: InputBatch, hidden: Tensor) -> Tensor:
        return self._head.forward(batch, hidden, self._cache)

    def best(self, hidden: Tensor) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self._head.best(hidden).numpy()
        return found


def _most_tokens(scheduler: SchedulerConfig) -> int:
    """Of a step."""
    return max(scheduler.max_num_batched_tokens, scheduler.max_num_seqs)
