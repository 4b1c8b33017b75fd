"""A head that drafts from the target's hidden states: on rank 0, on the same threads, with a KV cache of its own."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config, SchedulerConfig

from ...batch.input_batch import InputBatch
from ...kernels.cpu.library import Pool
from ...kv.budget import expert_rows_bytes, max_model_len
from ...kv.kv_cache import KVCache
from ...layers.model import Model
from ...models.decoder import Model as Decoder
from ...models.heads.eagle3_loading import load_eagle3
from ...models.heads.head import LoadedHead
from ...models.heads.mtp_loading import load_mtp
from ...models.taps import Taps
from ...speculation.model_drafters.head_drafter import MOST_WAITING, HeadDrafter
from .draft_model import draft_blocks


@dataclass(frozen=True, slots=True, eq=False)
class DraftHead:
    """The loaded head, and the size of its cache."""

    head: LoadedHead
    target: Decoder
    num_blocks: int
    block_size: int
    cache_bytes: int  # with the copies of the target's hidden states, and buffers of experts

    @classmethod
    def load(
        cls, config: Config, target_folder: Path, target: Model, pool: Pool | None, free_bytes: int
    ) -> "DraftHead":
        """Load the configured head. `free_bytes` are free before that, for its weights and its cache.

        Raises ConfigError, with the setting's name, if the folder is missing, or its head cannot draft for `target`.
        """
        own = config.speculation.draft_model
        named = f"draft_model={own}" if own else f"speculative={config.speculation.method!r}"
        if type(target) is not Decoder:
            raise ConfigError(f"{named}: this model's layers do not give their hidden states; use --speculative draft")
        if "generate" not in target.pooling.spec.tasks:
            raise ConfigError(f"{named}: the model generates no tokens, so there is nothing to draft")
        head = _loaded(config, named, target_folder, target, pool)
        longest, free_bytes = max_model_len(config, target.geometry), free_bytes - head.weights_bytes
        num_blocks, block_size, cache_bytes = draft_blocks(config, named, head.geometry, longest, free_bytes)
        of_token = len(set(head.tapped)) * target.geometry.hidden_size * target.dtype.itemsize
        most_pairs = _most_tokens(config.scheduler) + config.scheduler.max_num_seqs * MOST_WAITING
        beside = _most_tokens(config.scheduler) * of_token + expert_rows_bytes(head.geometry, most_pairs)
        return cls(head, target, num_blocks, block_size, cache_bytes + beside)

    def drafter(self, scheduler: SchedulerConfig) -> HeadDrafter:
        """Allocate the cache, and open the target's taps. Raises ConfigError if memory is short."""
        cache = self.head.new_cache(self.num_blocks, self.block_size)
        geometry, most = self.target.geometry, _most_tokens(scheduler)
        self.target.taps.open(self.head.tapped, geometry.hidden_size, geometry.dtype, most)
        return HeadDrafter(CachedHead(self.head, cache, self.target.taps), self.num_blocks, self.block_size)


class CachedHead:
    """The Head of HeadDrafter."""

    def __init__(self, head: LoadedHead, cache: KVCache, taps: Taps):
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


def _loaded(config: Config, named: str, target_folder: Path, target: Decoder, pool: Pool | None) -> LoadedHead:
    """The head of the configured method."""
    folder = Path(config.speculation.draft_model)
    try:
        if config.speculation.method == "mtp":
            return load_mtp(target_folder, config.model, target, pool)
        if not (folder / "config.json").is_file():
            raise ConfigError(f"there is no {folder.absolute() / 'config.json'}; give a local head")
        return load_eagle3(folder, target_folder, config.model, target, pool)
    except ConfigError as error:
        remedy = "" if config.speculation.draft_model else "; use --speculative suffix"
        raise ConfigError(f"{named}: {error}{remedy}") from error


def _most_tokens(scheduler: SchedulerConfig) -> int:
    """Of a step."""
    return max(scheduler.max_num_batched_tokens, scheduler.max_num_seqs)
