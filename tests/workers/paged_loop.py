"""A minimal driver of a Model: rows with block tables, steps of decode rows and chunks, greedy choice."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from paged_serve.workers.batch.input_batch import InputBatch
from paged_serve.workers.geometry.layer_options import AttentionMask
from paged_serve.workers.kv.cache_layout import CacheLayout
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.models.decoder import Model

NOWHERE = 2**30  # the id of a block that no cache has


@dataclass
class LoopRow:
    token_ids: list[int]
    tables: list[list[int]]  # for each KV group
    num_computed: int = 0
    logits: list[Tensor] = field(default_factory=list)  # for every sampled position


class PagedLoop:
    """Assigns blocks from a shuffled pool to rows and runs steps of any composition.

    With a `max_model_len`, layers are in KV groups, as on a server with this limit. Blocks behind windows are reused at
    once, after `on_freed(cache, block)`.
    """

    def __init__(
        self,
        model: Model,
        num_blocks: int = 64,
        block_size: int = 16,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        max_model_len: int | None = None,
        on_freed: Callable[[KVCache, int], None] = lambda cache, block: None,
    ):
        self.model = model
        groups = None
        if max_model_len or model.geometry.recurrent:
            layout = CacheLayout.of(model.geometry, max_model_len or 1 << 20, block_size, model.tp_size, dtype)
            groups, block_size = layout.groups, layout.block_size
        self.block_size = block_size
        self.cache = KVCache.allocate(model.geometry, num_blocks, block_size, model.tp_size, dtype=dtype, groups=groups)
        self.kinds, self.units = self.cache.groups.kinds, self.cache.groups.table_units
        self.free = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed)).tolist()
        self._on_freed = on_freed

    def row(self, token_ids: list[int], shared: LoopRow | None = None, shared_blocks: int = 0) -> LoopRow:
        """A new row; its first `shared_blocks` blocks are those of `shared`, which are computed already."""
        row = LoopRow(list(token_ids), [table[:shared_blocks] for table in shared.tables] if shared else [])
        row.tables = row.tables or [[] for _ in self.kinds]
        row.num_computed = shared_blocks * self.block_size
        return row

    def step(self, work: list[tuple[LoopRow, int]]) -> Tensor:
        """Compute the next n tokens of each row, rows with one token first; returns all tokens' logits, packed."""
        return self.model.logits(self.hidden(work)).clone()

    def hidden(self, work: list[tuple[LoopRow, int]], returned_tokens: Tensor | None = None) -> Tensor:
        """The same, but returns hidden states, of all tokens or of some."""
        for row, count in work:
            for table in row.tables:
                while len(table) * self.block_size < row.num_computed + count:
                    table.append(self.free.pop())
        hidden = self.model.forward(replace(self.batch(work), returned_tokens=returned_tokens), self.cache)
        for row, count in work:
            row.num_computed += count
            self._free_behind_windows(row)
        return hidden

    def _free_behind_windows(self, row: LoopRow) -> None:
        for table, kind in zip(row.tables, self.kinds, strict=True):
            window = 2 if kind.is_state else kind.window
            first = AttentionMask(window, kind.attention_chunk).first_seen(row.num_computed)
            for index in range(first // self.block_size):
                if table[index] != NOWHERE:
                    self._on_freed(self.cache, table[index])
                    self.free.append(table[index])
                    table[index] = NOWHERE

    def batch(self, work: list[tuple[LoopRow, int]]) -> InputBatch:
        positions = [list(range(row.num_computed, row.num_computed + count)) for row, count in work]
        kv_lens = [row.num_computed + count for row, count in work]
        starts = [0]
        for _, count in work:
            starts.append(starts[-1] + count)
        return InputBatch(
            token_ids=torch.tensor(
                [row.token_ids[p] for (row, _), ps in zip(work, positions, strict=True) for p in ps]
            ),
            positions=torch.tensor([p for ps in positions for p in ps]),
            row_starts=torch.tensor(starts, dtype=torch.int32),
            kv_lens=torch.tensor(kv_lens, dtype=torch.int32),
            longest=max(kv_lens),
            block_tables=[self._tables([row.tables[g] for row, _ in work], unit) for g, unit in enumerate(self.units)],
            slots=[
                torch.tensor(
                    [
                        row.tables[group][p // self.block_size] * unit * self.block_size + p % self.block_size
                        for (row, _), ps in zip(work, positions, strict=True)
                        for p in ps
                    ]
                )
                for group, unit in enumerate(self.units)
            ],
            logit_tokens=torch.tensor([end - 1 for end in starts[1:]]),
            num_decode_rows=sum(count == 1 for _, count in work),
        )

    def _tables(self, tables: list[list[int]], unit: int) -> Tensor:
        widest = max(map(len, tables))
        padded = torch.tensor([table + [NOWHERE] * (widest - len(table)) for table in tables])
        return (padded * unit).clamp_max(NOWHERE).int()

    def prefill(self, row: LoopRow, chunk: int = 1 << 30) -> Tensor:
        """Compute the row's remaining tokens in chunks; returns the logits of each, [tokens, vocab]."""
        parts = []
        while (left := len(row.token_ids) - row.num_computed) > 0:
            parts.append(self.step([(row, min(chunk, left))]))
        return torch.cat(parts)

    def greedy(self, prompt: list[int], num_tokens: int, chunk: int = 1 << 30) -> list[int]:
        """The `num_tokens` greedy tokens after `prompt`."""
        row = self.row(prompt)
        for _ in range(num_tokens):
            row.token_ids.append(int(self.prefill(row, chunk)[-1].argmax()))
        return row.token_ids[len(prompt) :]
