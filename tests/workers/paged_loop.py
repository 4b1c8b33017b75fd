"""A minimal driver of a Model: rows with block tables, steps of decode rows and chunks, greedy choice."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from paged_serve.workers.batch.input_batch import InputBatch
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.models.decoder import Model


@dataclass
class LoopRow:
    token_ids: list[int]
    block_ids: list[int]
    num_computed: int = 0
    logits: list[Tensor] = field(default_factory=list)  # of every sampled position


class PagedLoop:
    """Gives each row blocks from a shuffled pool and runs steps of any composition."""

    def __init__(self, model: Model, num_blocks: int = 64, block_size: int = 16, seed: int = 0, dtype=None):
        self.model = model
        self.block_size = block_size
        self.cache = KVCache.allocate(model.geometry, num_blocks, block_size, model.tp_size, dtype=dtype)
        self.free = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed)).tolist()

    def row(self, token_ids: list[int], shared: LoopRow | None = None, shared_blocks: int = 0) -> LoopRow:
        """A new row; its first `shared_blocks` blocks are those of `shared`, already computed."""
        row = LoopRow(list(token_ids), shared.block_ids[:shared_blocks] if shared else [])
        row.num_computed = shared_blocks * self.block_size
        return row

    def step(self, work: list[tuple[LoopRow, int]]) -> Tensor:
        """Computes the next n tokens of each row, first those with one token; returns all tokens' logits, packed."""
        return self.model.logits(self.hidden(work)).clone()

    def hidden(self, work: list[tuple[LoopRow, int]]) -> Tensor:
        """The same, but their hidden states."""
        for row, count in work:
            while len(row.block_ids) * self.block_size < row.num_computed + count:
                row.block_ids.append(self.free.pop())
        hidden = self.model.forward(self.batch(work), self.cache)
        for row, count in work:
            row.num_computed += count
        return hidden

    def batch(self, work: list[tuple[LoopRow, int]]) -> InputBatch:
        positions = [list(range(row.num_computed, row.num_computed + count)) for row, count in work]
        kv_lens = [row.num_computed + count for row, count in work]
        widest = max(len(row.block_ids) for row, _ in work)
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
            block_tables=torch.tensor(
                [row.block_ids + [2**30] * (widest - len(row.block_ids)) for row, _ in work], dtype=torch.int32
            ),
            slots=torch.tensor(
                [
                    row.block_ids[p // self.block_size] * self.block_size + p % self.block_size
                    for (row, _), ps in zip(work, positions, strict=True)
                    for p in ps
                ]
            ),
            logit_tokens=torch.tensor([end - 1 for end in starts[1:]]),
            num_decode_rows=sum(count == 1 for _, count in work),
        )

    def prefill(self, row: LoopRow, chunk: int = 1 << 30) -> Tensor:
        """All of the row's tokens not yet computed, in chunks; logits of each of them, [tokens, vocab]."""
        parts = []
        while (left := len(row.token_ids) - row.num_computed) > 0:
            parts.append(self.step([(row, min(chunk, left))]))
        return torch.cat(parts)

    def greedy(self, prompt: list[int], num_tokens: int, chunk: int = 1 << 30) -> list[int]:
        """`num_tokens` chosen tokens after `prompt`."""
        row = self.row(prompt)
        for _ in range(num_tokens):
            row.token_ids.append(int(self.prefill(row, chunk)[-1].argmax()))
        return row.token_ids[len(prompt) :]
