"""The rows' state on a device, so that a step can start before the host knows the tokens of the previous step.

The CPU counts as a device too: its steps read the same tensors, which exist in addition to the host's rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_serve.protocol.messages.worker import NewRow, SchedulerOutput

from .input_batch import AdapterGroups, InputBatch, StepArrays, adapter_groups
from .staging import ALIGNMENT, Staging

NO_SLOT = -1  # the slot of padding, whose keys and values are not written
Adapting = Literal["never", "if any", "always"]  # when steps have AdapterGroups; always: graphs read them


@dataclass(frozen=True, slots=True, eq=False)
class StagedStep:
    """A step's arrays on the device, in the order in which they are staged.

    The arrays of the decode set have the same addresses in all steps with the same number of rows.
    """

    token_ids: Tensor  # [tokens] i64; undefined for decode rows
    positions: Tensor  # [tokens] i64
    rows: Tensor  # [rows] i64
    logit_tokens: Tensor  # [logits] i64
    sampled_rows: Tensor  # [sampled] i64
    row_starts: Tensor  # [rows + 1] i32
    kv_lens: Tensor  # [rows] i32; 0 for padding
    slots: Sequence[Tensor]  # for each KV group [tokens] i64; NO_SLOT for padding
    num_decode_rows: int
    stored_lens: Tensor | None = None  # [rows] i32; None: there are no drafts
    adapters: AdapterGroups | None = None  # as in InputBatch
    logit_adapters: AdapterGroups | None = None


NUM_STAGED = 8  # arrays besides the slots
STAGED_BYTES_OF_TOKEN, STAGED_BYTES_OF_ROW = 3 * 8, 2 * 8 + 3 * 4
STAGED_BYTES_OF_SLOT = 8
STAGED_BYTES_OF_ADAPTER = 2 * 4 * 4  # of a token, if there are adapters
STAGED_BYTES_BETWEEN = 4 + NUM_STAGED * ALIGNMENT


class DeviceRows:
    """Every row's last token and block tables, in tensors that are allocated once."""

    def __init__(
        self,
        num_rows: int,
        max_len: int,
        block_size: int,
        max_tokens: int,
        device: str,
        steps_in_flight: int,
        num_groups: int = 1,
        adapters: Adapting = "never",
    ):
        max_blocks = -(-max_len // block_size)
        self.device = device
        self.last_token = torch.zeros(num_rows, dtype=torch.int64, device=device)
        # A row's tables are contiguous, so that the tables of all groups are gathered at once.
        self.block_tables = torch.zeros((num_rows, num_groups * max_blocks), dtype=torch.int32, device=device)
        # The tensors that `batch` gathers, at the same addresses in all steps with the same number of rows.
        self._token_ids = torch.zeros_like(self.last_token)
        self._gathered_tables = torch.zeros_like(self.block_tables)
        self._gathered: dict[int, tuple[Tensor, Sequence[Tensor]]] = {}  # number of rows -> (all tables, per KV group)
        self._num_groups = num_groups
        self._max_blocks = max_blocks
        self._adapting = adapters
        of_token = STAGED_BYTES_OF_TOKEN + num_groups * STAGED_BYTES_OF_SLOT
        if adapters != "never":
            of_token += STAGED_BYTES_OF_ADAPTER
        largest = of_token * max(num_rows, max_tokens) + STAGED_BYTES_OF_ROW * num_rows
        between = STAGED_BYTES_BETWEEN + (num_groups + 2) * ALIGNMENT + 2 * 4
        self._steps = Staging(device, largest + between, steps_in_flight)  # graphs read it: it never grows
        self._updates = Staging(device, 1 << 16, steps_in_flight)
        self._places: list[NDArray[np.int64]] = []  # in the flat block tables
        self._blocks: list[NDArray[np.int32]] = []
        self._reset_rows: list[int] = []
        self._reset_tokens: list[int] = []

    def apply(self, plan: SchedulerOutput, places: NDArray[np.int64]) -> None:
        """Apply the changes in `plan`, as RequestRows.apply does; `places` is its result."""
        for new_row in plan.new_rows:
            self.reset(new_row)
        if len(places):
            self.append_blocks(plan, places)

    def reset(self, new: NewRow) -> None:
        """Replace the state of the row by that of `new`, as RequestRows.reset does."""
        for table, ids in enumerate(new.block_tables, start=new.row * self._num_groups):
            blocks = np.frombuffer(ids, "<i4")
            self._places.append(table * self._max_blocks + np.arange(len(blocks)))
            self._blocks.append(blocks)
        self._reset_rows.append(new.row)
        self._reset_tokens.append(int.from_bytes(new.token_ids[-4:], "little"))

    def append_blocks(self, plan: SchedulerOutput, places: NDArray[np.int64]) -> None:
        """Append the blocks of one step; `places` [blocks] is the result of RequestRows.append_blocks."""
        self._places.append(places)
        self._blocks.append(np.frombuffer(plan.extended_block_ids, "<i4"))

    def update(self) -> None:
        """Enqueue on the stream the changes that `reset` and `append_blocks` recorded."""
        if not self._places:
            return
        # A row may be reset twice before a step, so a place may be written twice: the last value counts.
        table = _last_of_each(np.concatenate(self._places), np.concatenate(self._blocks).astype(np.int32))
        tokens = _last_of_each(np.array(self._reset_rows, np.int64), np.array(self._reset_tokens, np.int64))
        places, blocks, rows, last_tokens = self._updates.put((*table, *tokens))
        self.block_tables.view(-1).index_copy_(0, places, blocks)
        self.last_token.index_copy_(0, rows, last_tokens)
        for queue in (self._places, self._blocks, self._reset_rows, self._reset_tokens):
            queue.clear()

    def stage(self, arrays: StepArrays, num_rows: int) -> StagedStep:
        """Copy `arrays` to the device. A decode set is padded to `num_rows` rows; padding rows attend to no keys."""
        tokens, more = len(arrays.token_ids), num_rows - len(arrays.rows)
        if more:
            assert tokens == arrays.num_decode_rows, "only the decode set is padded"
            staged = _padded(arrays, more)
        else:
            of_rows = arrays.rows, arrays.logit_tokens, arrays.sampled_rows, arrays.row_starts, arrays.kv_lens
            stored = () if arrays.stored_lens is None else (arrays.stored_lens,)
            staged = arrays.token_ids, arrays.positions, *of_rows, *arrays.slots, *stored
        groups = self._groups_of(arrays, more)
        on_device = self._steps.put((*staged, *(table for table, _ in groups)))
        token_ids, positions, rows, logit_tokens, sampled_rows, row_starts, kv_lens, *rest = on_device
        slots, rest = rest[: self._num_groups], rest[self._num_groups :]
        stored_lens = None if arrays.stored_lens is None else rest.pop(0)
        adapters = [AdapterGroups(table, most) for table, (_, most) in zip(rest, groups, strict=True)]
        num_decode_rows = arrays.num_decode_rows + more
        by_row = rows, logit_tokens, sampled_rows, row_starts, kv_lens
        return StagedStep(token_ids, positions, *by_row, slots, num_decode_rows, stored_lens, *adapters)

    def _groups_of(self, arrays: StepArrays, more: int) -> list[tuple[NDArray[np.int32], int]]:
        """The groups of the tokens and of the logits, with `more` rows of padding; none if the step has no adapters.

        A step of a graph always has groups, as many as there are rows to its kernels.
        """
        if self._adapting == "never" or (self._adapting == "if any" and arrays.adapters is None):
            return []
        tokens, logits, places = len(arrays.token_ids) + more, len(arrays.logit_tokens) + more, arrays.adapters
        if places is not None and more:
            places = np.pad(places, (0, more))
        of_tokens, count = adapter_groups(places, tokens)
        if self._adapting == "always" and tokens == arrays.num_decode_rows + more:
            return [(of_tokens, tokens), (of_tokens, tokens)]
        if tokens == logits:
            return [(of_tokens, count), (of_tokens, count)]
        return [(of_tokens, count), adapter_groups(None if places is None else places[arrays.logit_tokens], logits)]

    def batch(self, step: StagedStep, longest: int) -> InputBatch:
        """The inputs of the step, with the tokens that only the device has. It never waits: a graph may contain it."""
        num_rows, num_decode_rows = len(step.rows), step.num_decode_rows
        token_ids = step.token_ids
        if num_decode_rows == num_rows:
            token_ids = torch.index_select(self.last_token, 0, step.rows, out=self._token_ids[:num_rows])
        elif num_decode_rows:
            known = self.last_token.index_select(0, step.rows[:num_decode_rows])
            token_ids = torch.cat((known, token_ids[num_decode_rows:]))
        tables, by_group = self._gathered.get(num_rows) or self._place_of_tables(num_rows)
        torch.index_select(self.block_tables, 0, step.rows, out=tables)
        return InputBatch(
            token_ids=token_ids,
            positions=step.positions,
            row_starts=step.row_starts,
            kv_lens=step.kv_lens,
            longest=longest,
            block_tables=by_group,
            slots=step.slots,
            logit_tokens=step.logit_tokens,
            num_decode_rows=step.num_decode_rows,
            adapters=step.adapters,
            logit_adapters=step.logit_adapters,
            stored_lens=step.stored_lens,
        )

    def tables_of(self, rows: Tensor) -> Sequence[Tensor]:
        """The block tables of `rows` [n] i64 in each KV group, [n, max_blocks] i32."""
        return self.block_tables[rows].view(len(rows), self._num_groups, self._max_blocks).unbind(1)

    def _place_of_tables(self, num_rows: int) -> tuple[Tensor, Sequence[Tensor]]:
        tables = self._gathered_tables[:num_rows]
        self._gathered[num_rows] = tables, tables.view(num_rows, self._num_groups, self._max_blocks).unbind(1)
        return self._gathered[num_rows]

    def feed(self, rows: Tensor, token_ids: Tensor) -> None:
        """Set the last tokens of `rows`, both [n] i64, from which their next steps start."""
        self.last_token.index_copy_(0, rows, token_ids)


def _padded(arrays: StepArrays, more: int) -> tuple[NDArray[np.integer[Any]], ...]:
    """The arrays of a StagedStep, with `more` rows of one token each that attend to no keys."""
    tokens = len(arrays.token_ids)
    return (
        np.pad(arrays.token_ids, (0, more)),
        np.pad(arrays.positions, (0, more)),
        np.pad(arrays.rows, (0, more)),
        np.concatenate((arrays.logit_tokens, np.arange(tokens, tokens + more))),
        np.pad(arrays.sampled_rows, (0, more)),
        np.concatenate((arrays.row_starts, np.arange(tokens + 1, tokens + 1 + more, dtype=np.int32))),
        np.pad(arrays.kv_lens, (0, more)),
        *(np.pad(slots, (0, more), constant_values=NO_SLOT) for slots in arrays.slots),
    )


def _last_of_each(
    keys: NDArray[np.int64], values: NDArray[np.integer[Any]]
) -> tuple[NDArray[np.int64], NDArray[np.integer[Any]]]:
    """Each distinct key with its last value."""
    unique, first = np.unique(keys[::-1], return_index=True)
    return unique, values[::-1][first]
