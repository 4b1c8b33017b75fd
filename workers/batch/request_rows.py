"""The worker's state of all running requests, one row each; it persists between steps, so plans carry only deltas."""

import numpy as np
from numpy.typing import NDArray

from paged_serve.protocol.messages.worker import NewRow, SchedulerOutput

from .grammars import Grammars
from .sampling_columns import SamplingColumns


class RequestRows:
    """Token ids, block tables and sampling parameters by row index, in arrays that are allocated once.

    A row's tokens:  [0, num_computed) in the KV cache | [num_computed, length) known, not yet computed
    Rows of finished requests keep their old contents until a NewRow resets them.
    A row has a block table for each KV group: table number row * num_groups + group.
    """

    def __init__(
        self,
        num_rows: int,
        max_len: int,
        block_size: int,
        vocab_size: int,
        grammars: Grammars | None = None,
        num_groups: int = 1,
    ):
        self.block_size = block_size  # tokens
        self.token_ids = np.zeros((num_rows, max_len), np.int32)  # prompt, then output
        self.length = np.zeros(num_rows, np.int64)
        self.prompt_len = np.zeros(num_rows, np.int64)
        self.generation = np.zeros(num_rows, np.int64)  # how often the row was reset
        self.num_computed = np.zeros(num_rows, np.int64)
        self._num_groups = num_groups
        self._tables = np.zeros((num_rows * num_groups, -(-max_len // block_size)), np.int32)
        self.block_tables = [self._tables[group::num_groups] for group in range(num_groups)]  # [rows, max_blocks] each
        self.num_blocks = np.zeros(num_rows * num_groups, np.int64)  # by table
        self.adapters = np.zeros(num_rows, np.int32)  # the place of the row's LoRA adapter; 0: none
        self.has_adapters = False  # whether a row has had one
        self.pools = np.zeros(num_rows, np.bool_)  # the row produces a vector and samples nothing
        self.prompt_logprobs: list[int | None] = [None] * num_rows  # how many, besides the prompt token itself
        self.sampling = SamplingColumns(num_rows, vocab_size, grammars)
        self.decode_set = np.zeros(0, np.int64)  # rows that get one token per step, ascending

    def apply(self, plan: SchedulerOutput) -> NDArray[np.int64]:
        """Apply the changes in `plan`. Returns the places of its blocks, as `append_blocks` does."""
        for new_row in plan.new_rows:
            self.reset(new_row)
        places = self.append_blocks(plan)
        if plan.decode_leaves:
            self.decode_set = np.setdiff1d(self.decode_set, np.frombuffer(plan.decode_leaves, "<i4"))
        if plan.decode_joins:
            self.decode_set = np.union1d(self.decode_set, np.frombuffer(plan.decode_joins, "<i4"))
        return places

    def reset(self, new: NewRow) -> None:
        """Replace the state of the row by that of `new`."""
        row = new.row
        token_ids = np.frombuffer(new.token_ids, "<i4")
        self.token_ids[row, : len(token_ids)] = token_ids
        self.length[row] = len(token_ids)
        self.prompt_len[row] = new.prompt_len
        self.generation[row] += 1
        self.num_computed[row] = new.num_computed_tokens
        tables, groups = len(new.block_tables), self._num_groups
        assert tables == groups, f"a row has {tables} block tables, but the model has {groups} KV groups"
        for table, ids in enumerate(new.block_tables, start=row * self._num_groups):
            blocks = np.frombuffer(ids, "<i4")
            self._tables[table, : len(blocks)] = blocks
            self.num_blocks[table] = len(blocks)
        self.adapters[row] = new.adapter
        self.has_adapters |= new.adapter > 0
        self.pools[row] = new.pooling_params is not None
        self.prompt_logprobs[row] = new.sampling_params.prompt_logprobs
        self.sampling.reset(row, new.sampling_params, new.seed, token_ids, new.prompt_len, new.eos_token_ids)

    def append_blocks(self, plan: SchedulerOutput) -> NDArray[np.int64]:
        """Append the blocks of one step. Returns each one's place in the flat block tables."""
        tables, blocks = (np.frombuffer(ids, "<i4").tolist() for ids in (plan.extended_tables, plan.extended_block_ids))
        places = np.empty(len(tables), np.int64)
        per_table = self._tables.shape[1]
        for index, (table, block) in enumerate(zip(tables, blocks, strict=True)):
            places[index] = table * per_table + self.num_blocks[table]
            self._tables[table, self.num_blocks[table]] = block
            self.num_blocks[table] += 1
        return places

    def num_slots(self, row: int) -> int:
        """Tokens whose keys and values the row's blocks hold."""
        tables = slice(row * self._num_groups, (row + 1) * self._num_groups)
        return int(self.num_blocks[tables].min()) * self.block_size

    def append_tokens(self, rows: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Append one sampled token to each of these distinct rows."""
        places = self.length[rows]
        self.length[rows] += 1
        self.fill(rows, places, token_ids)

    def append_runs(self, rows: NDArray[np.int64], places: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Append sampled tokens to rows that may occur several times, with places 0, 1, ... in ascending order."""
        self.token_ids[rows, self.length[rows] + places] = token_ids
        self.sampling.append(rows, token_ids)
        self.length += np.bincount(rows, minlength=len(self.length))

    def fill(self, rows: NDArray[np.int64], places: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Store late tokens at these places of distinct rows, whose lengths already include them."""
        self.token_ids[rows, places] = token_ids
        self.sampling.append(rows, token_ids)

    def output(self, row: int) -> NDArray[np.int32]:
        """The row's output tokens so far."""
        return self.token_ids[row, self.prompt_len[row] : self.length[row]]

    def tokens(self, row: int) -> NDArray[np.int32]:
        """The row's prompt and output so far."""
        return self.token_ids[row, : self.length[row]]

    def next_positions(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The output position that each row's next token will have; 0 is the first."""
        return self.length[rows] - self.prompt_len[rows]
