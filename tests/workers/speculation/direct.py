"""Plans of a single row, sent to a runner without a planner."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paged_serve.protocol.messages.config import SchedulerConfig
from paged_serve.protocol.messages.message import pack_ids, unpack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import Chunk, ModelRunnerOutput, NewRow, SchedulerOutput
from paged_serve.workers.batch.grammars import Grammars
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kv.cache_layout import CacheLayout
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.layers.model import Model
from paged_serve.workers.runner.host_runner import host_runner
from paged_serve.workers.speculation.drafter import DraftRequest

BLOCK_SIZE, MAX_LEN = 16, 64


class Fixed:
    """Drafts given tokens."""

    def __init__(self, *drafts: int):
        self.drafts = drafts

    def draft(self, requests: Sequence[DraftRequest]) -> list[NDArray[np.int32]]:
        return [np.array(self.drafts[: request.most], np.int32) for request in requests]


class Row:
    """Row 0 of a new runner."""

    def __init__(self, model: Model, drafter: Fixed, prompt: Sequence[int], params: SamplingParams, grammars=None):
        layout = CacheLayout.of(model.geometry, MAX_LEN, BLOCK_SIZE)
        of_group, num_groups = -(-MAX_LEN // layout.block_size), len(layout.groups.windows)
        shape = model.geometry, num_groups * of_group, layout.block_size
        self.cache = KVCache.allocate(*shape, groups=layout.groups)
        for tensor in (*self.cache.keys, *self.cache.values):
            tensor.fill_(float("nan"))
        options: dict[str, Grammars | Fixed | None] = {"grammars": grammars, "drafter": drafter}
        scheduler = SchedulerConfig(max_num_seqs=2)
        self.runner = host_runner(model, self.cache, TensorParallelGroup(), scheduler, MAX_LEN, **options)
        blocks = tuple(pack_ids(range(at * of_group, (at + 1) * of_group)) for at in range(num_groups))
        new = NewRow(0, pack_ids(prompt), len(prompt), 0, blocks, 5, (2, 0), params)
        self.first = self.execute(new_rows=(new,), chunks=(Chunk(0, len(prompt)),))

    def execute(self, **plan) -> ModelRunnerOutput:
        return self.runner.execute(SchedulerOutput(1, 1, **plan))

    def verify(self, num_drafts: int) -> ModelRunnerOutput:
        return self.execute(chunks=(Chunk(0, 1, num_drafts),))

    def decoded(self, count: int) -> list[int]:
        """The next tokens, one at a time."""
        tokens = [unpack_ids(self.execute(decode_joins=pack_ids([0])).token_ids)[0] for _ in range(count)]
        self.execute(decode_leaves=pack_ids([0]))
        return tokens

    def is_written(self, position: int) -> bool:
        """Whether the cache has keys of this position, in the block of this number."""
        return not self.cache.keys[0][position // BLOCK_SIZE, :, position % BLOCK_SIZE].isnan().any()


def counts(output: ModelRunnerOutput) -> tuple[list[int], list[int]]:
    """(num_drafted, num_sampled)."""
    return list(unpack_ids(output.num_drafted)), list(unpack_ids(output.num_sampled))
