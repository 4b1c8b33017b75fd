"""A rank's tier behind the real engine core and the real runner, in one process."""

import select

import torch

from paged_serve.engine_core.engine.debug import check_invariants
from paged_serve.engine_core.process.tier_link import take_tier_messages, tier_answered
from paged_serve.protocol.messages.config import CacheConfig, Config, KVTierConfig, SchedulerConfig
from paged_serve.protocol.messages.engine_core import EngineCoreRequest
from paged_serve.protocol.messages.loading.kv_tiers import (
    BlocksMoved,
    LoadBlocks,
    StoreBlocks,
    ToWorkerTier,
    unpack_keys,
)
from paged_serve.protocol.messages.message import pack_ids, unpack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.workers.kv.cache_layout import CacheLayout
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.runner.completions import PassedEvent
from paged_serve.workers.tier.open_tier import open_tier

from ..one_process import OneProcess

LENGTH, VOCAB_SIZE = 400, 90
Contents = tuple[bytes, bytes]  # key and bytes of a block


class TieredProcess(OneProcess):
    """Each message of the engine is answered before the next step."""

    def __init__(
        self, model, folder, tier_folder, num_blocks=LENGTH // 4, block_size=16, max_bytes=1 << 30, host="", disk=True
    ):
        """`host`: the run directory of a server whose tier is also in memory; with `disk` False only there."""
        config = Config(
            cache=CacheConfig(block_size=block_size),
            kv_tier=KVTierConfig(str(tier_folder) if disk else "", max_bytes, max_bytes if host else 0),
            scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64),
        )
        self._cache = None
        self.stored: list[Contents] = []  # what the cache had when the tier had stored it
        self.restored: list[Contents] = []  # what the cache has since the tier has loaded it
        self.num_refused = 0  # blocks that could not be loaded
        self._is_open = True
        super().__init__(model, config, num_blocks, LENGTH)
        self.engine.scheduler.loading.prompt_token_s = lambda: 1.0  # to load is quicker, however fast this machine is
        library = None if model.backend is None else getattr(getattr(model.backend, "pool", None), "library", None)
        layout = CacheLayout.of(model.geometry, LENGTH, block_size, model.tp_size, self.cache_dtype)
        facts = (repr(layout), str(model.dtype), str(self.cache_dtype))
        self.tier = open_tier(config, folder, facts, self._cache, 0, library, (), host)

    def new_cache(self, model, group):
        if self.cache_dtype is None:
            self._cache = super().new_cache(model, group)
        else:  # int8 has no NaN
            shape = model.geometry, self.num_blocks, self.block_size, group.size
            self._cache = KVCache.allocate(*shape, dtype=self.cache_dtype, groups=self.groups)
        return self._cache

    def move(self):
        """Send all messages, and wait until no transfer is left."""
        tiers, sent = self.engine.kv_cache.tiers, dict[int, ToWorkerTier]()
        while (messages := take_tier_messages(self.engine, 1.0)) or tiers.transfers or not tiers.index.is_known:
            for message in messages:
                if isinstance(message, StoreBlocks | LoadBlocks):
                    sent[message.transfer] = message
                self.tier.handle(message, PassedEvent())
            assert select.select([self.tier.fd], [], [], 30.0)[0], "the tier does not answer"
            for answer in self.tier.take():
                if isinstance(answer, BlocksMoved) and (message := sent.pop(answer.transfer, None)):
                    self._record(message, set(unpack_ids(answer.failed).tolist()))
                tier_answered(self.engine, answer, 2.0)
            check_invariants(self.engine)

    def _record(self, message: StoreBlocks | LoadBlocks, failed: set[int]) -> None:
        moved = self.stored if isinstance(message, StoreBlocks) else self.restored
        blocks, keys = unpack_ids(message.block_ids).tolist(), unpack_keys(message.keys)
        for index, (block, key) in enumerate(zip(blocks, keys, strict=True)):
            if index in failed:
                self.num_refused += isinstance(message, LoadBlocks)
            else:
                areas = [area[block].view(torch.uint8).numpy().tobytes() for area in self._cache.blocks]
                moved.append((key, b"".join(areas)))

    def close(self):
        if self._is_open:
            self.tier.close()
            self._is_open = False

    def complete(self, prompt, number=1):
        """The tokens and logprobs, and how many tokens of the prompt were computed."""
        sampling = SamplingParams(max_tokens=12, seed=7, logprobs=3, ignore_eos=True)
        self.add(EngineCoreRequest(1000 * number, pack_ids(prompt), sampling))
        computed = 0
        while not self.is_idle:
            self.plan()
            computed += sum(chunk.num_tokens for chunk in self.plans[-1].chunks) if self.plans else 0
            self.move()
            for act in (self.execute, self.apply, self.read):
                act()
        self.move()
        received = self.received[1000 * number]
        return (received.token_ids, received.logprobs), computed
