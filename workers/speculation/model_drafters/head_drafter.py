"""Drafts of a head that reads the target's hidden states: its greedy continuation of each row.

A head's input is a pair: the hidden state of a token, and the token after it. Its keys and values are in blocks of its
own, of which the engine core knows nothing. Each step's hidden states are taken as they come; where some are missing
(a prefix from the cache, a row that was preempted, blocks that were taken away), the head restarts at the first that
it has, with less text before it. So nothing needs notice, and no draft can be wrong in more than its value.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...batch.input_batch import InputBatch, StepArrays
from ...batch.request_rows import RequestRows
from ..drafter import DraftRequest
from .draft_blocks import BlockRow, DraftBlocks

MOST_WAITING = 64  # pairs of a row that wait until it gets drafts; if there are more, the head computes them before


class Head(Protocol):
    """A head with its cache."""

    def observed(self, num_tokens: int) -> Tensor:
        """The target's hidden states in its last pass of `num_tokens`: [tokens, n], in memory of their own."""
        ...

    def joined(self, observed: Tensor) -> Tensor:
        """[tokens, n] -> [tokens, hidden], the hidden states of pairs."""
        ...

    def forward(self, batch: InputBatch, hidden: Tensor) -> Tensor:
        """The head's own hidden states [tokens, hidden] of the pairs of `hidden` and the tokens of `batch`."""
        ...

    def best(self, hidden: Tensor) -> NDArray[np.int64]:
        """The likeliest next token of each of the head's hidden states."""
        ...


@dataclass(slots=True, eq=False)
class HeadRow(BlockRow):
    """A row's pairs: [first, first + computed) are in the cache, those of `waiting` follow."""

    generation: int
    first: int = 0  # the position of the first pair's hidden state
    num_computed: int = 0
    waiting: list[Tensor] = field(default_factory=list)  # each [tokens, n]
    num_waiting: int = 0

    @property
    def end(self) -> int:
        """The position after the last hidden state."""
        return self.first + self.num_computed + self.num_waiting

    def begin(self, generation: int, first: int) -> None:
        """Forget all pairs."""
        self.generation, self.first, self.num_computed = generation, first, 0
        self.waiting, self.num_waiting = [], 0

    def add(self, observed: Tensor) -> None:
        self.waiting.append(observed)
        self.num_waiting += len(observed)

    def take(self, count: int) -> Tensor:
        """The first `count` waiting hidden states, which count as computed from now on."""
        waiting = torch.cat(self.waiting)
        self.num_computed += count
        self.num_waiting -= count
        self.waiting = [waiting[count:].clone()] if self.num_waiting else []
        return waiting[:count]


@dataclass(slots=True, eq=False)
class Pairs:
    """Consecutive pairs of one row for one pass."""

    row: HeadRow
    start: int  # the index of the first
    tokens: NDArray[np.int32]  # the second of each pair


class HeadDrafter:
    """The Drafter of speculation.method="eagle3"."""

    def __init__(self, head: Head, num_blocks: int, block_size: int):
        self._head = head
        self._blocks = DraftBlocks[HeadRow](num_blocks, block_size)

    def observe(self, arrays: StepArrays, rows: RequestRows, num_late: int) -> None:
        self._blocks.begin()
        observed = self._head.observed(len(arrays.token_ids))
        due: list[Pairs] = []
        hidden: list[Tensor] = []
        starts = arrays.row_starts.tolist()
        for index, (row, kv_len) in enumerate(zip(arrays.rows.tolist(), arrays.kv_lens.tolist(), strict=True)):
            if rows.pools[row]:
                continue
            start, stop = starts[index], starts[index + 1]
            first = kv_len - (stop - start)
            count = min(int(rows.num_computed[row]), kv_len) - first
            generation = int(rows.generation[row])
            kept = self._blocks.rows.setdefault(row, HeadRow(generation))
            if kept.generation != generation or kept.end != first:
                kept.begin(generation, first)
            kept.add(observed[start : start + count].clone())
            num_known = int(rows.length[row]) - num_late - 1 - kept.first - kept.num_computed
            wanted = min(num_known, kept.num_waiting - 1)  # one is left, with which drafts begin
            if kept.num_waiting > MOST_WAITING and wanted > 0 and self._extend(kept, wanted):
                due.append(self._taken(kept, wanted, rows.tokens(row)))
                hidden.append(kept.take(wanted))
        if due:
            self._forward(due, self._head.joined(torch.cat(hidden)))

    def draft(self, requests: Sequence[DraftRequest]) -> list[NDArray[np.int32]]:
        self._blocks.begin()
        chosen = [request for request in requests if self._is_ready(request)]
        made: dict[int, list[int]] = {request.row: [] for request in chosen}
        if chosen:
            rows = [self._blocks.rows[request.row] for request in chosen]
            pairs = [
                self._taken(row, row.num_waiting, request.tokens) for row, request in zip(rows, chosen, strict=True)
            ]
            joined = self._head.joined(torch.cat([row.take(row.num_waiting) for row in rows]))
            lasts = np.cumsum([len(each.tokens) for each in pairs]) - 1
            hidden = self._forward(pairs, joined)[torch.from_numpy(lasts)]
            self._continue(chosen, made, hidden)
        return [np.array(made.get(request.row, ()), np.int32) for request in requests]

    def _continue(self, chosen: Sequence[DraftRequest], made: dict[int, list[int]], hidden: Tensor) -> None:
        """Take drafts from the head's `hidden` [rows, hidden]; each but a row's last is the token of a further pair."""
        for number in range(max(request.most for request in chosen)):
            if number:
                going = [index for index, request in enumerate(chosen) if request.most > number]
                chosen = [chosen[index] for index in going]
                pairs = [
                    Pairs(row, row.num_computed + number - 1, np.array(made[request.row][-1:], np.int32))
                    for request in chosen
                    for row in (self._blocks.rows[request.row],)
                ]
                hidden = self._forward(pairs, hidden[going])
            for request, token in zip(chosen, self._head.best(hidden).tolist(), strict=True):
                made[request.row].append(token)

    def _is_ready(self, request: DraftRequest) -> bool:
        """Whether the hidden states of all of the row's tokens but the last are there, and blocks for its drafts."""
        row = self._blocks.rows.get(request.row)
        if row is None or request.num_drafts or row.generation != request.generation:
            return False
        if row.end != len(request.tokens) - 1 or not row.num_waiting:
            return False
        return self._extend(row, row.num_waiting + request.most - 1)

    def _taken(self, row: HeadRow, count: int, tokens: NDArray[np.int32]) -> Pairs:
        """The first `count` waiting pairs, before HeadRow.take; `tokens` are the row's."""
        first = row.first + row.num_computed + 1
        return Pairs(row, row.num_computed, tokens[first : first + count])

    def _extend(self, row: HeadRow, count: int) -> bool:
        """Give the row blocks for `count` more pairs. If there are not enough, the row starts again, without any."""
        if self._blocks.extend(row, row.num_computed + count):
            return True
        self._blocks.release(row)
        row.begin(row.generation, row.end)
        return False

    def _forward(self, pairs: Sequence[Pairs], hidden: Tensor) -> Tensor:
        """The head's hidden states [tokens, hidden] of all of `pairs`, with the target's, or its own, beside them."""
        size = self._blocks.block_size
        counts = np.array([len(each.tokens) for each in pairs])
        row_starts = np.concatenate(([0], np.cumsum(counts)))
        positions = np.concatenate([each.start + np.arange(len(each.tokens)) for each in pairs])
        kv_lens = np.array([each.start + len(each.tokens) for each in pairs])
        tables = np.zeros((len(pairs), -(-int(kv_lens.max()) // size)), np.int32)
        for table, each in zip(tables, pairs, strict=True):
            blocks = each.row.blocks[: len(table)]
            table[: len(blocks)] = blocks
        blocks_of = np.repeat(np.arange(len(pairs)), counts)
        slots = tables[blocks_of, positions // size].astype(np.int64) * size + positions % size
        batch = InputBatch(
            token_ids=torch.from_numpy(np.concatenate([each.tokens for each in pairs]).astype(np.int64)),
            positions=torch.from_numpy(positions),
            row_starts=torch.from_numpy(row_starts.astype(np.int32)),
            kv_lens=torch.from_numpy(kv_lens.astype(np.int32)),
            longest=int(kv_lens.max()),
            block_tables=(torch.from_numpy(tables),),
            slots=(torch.from_numpy(slots),),
            logit_tokens=torch.from_numpy(row_starts[1:] - 1),
            num_decode_rows=len(pairs) if (counts == 1).all() else 0,
        )
        return self._head.forward(batch, hidden)
