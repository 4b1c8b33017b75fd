"""Drafts of a smaller model for the target: its greedy continuation of each row.

The draft model has rows, blocks and steps of its own, of which the engine core knows nothing. Before drafting, its rows
are compared with the target's: what agrees stays computed, the rest is computed again. So a row that was preempted,
replaced or rejected needs no notice, and no draft can be wrong in more than its value.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paged_serve.protocol.messages.message import pack_ids, unpack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import Chunk, ModelRunnerOutput, NewRow, SchedulerOutput

from ..drafter import NO_DRAFTS, DraftRequest
from .draft_blocks import BlockRow, DraftBlocks

NO_EPOCH = NO_STEP = 0  # the steps of the draft model belong to no plan of the core
GREEDY = SamplingParams(temperature=0.0)


@dataclass(slots=True, eq=False)
class ComputedRow(BlockRow):
    """What the draft model's cache holds of a row."""

    tokens: NDArray[np.int32] = field(default_factory=lambda: NO_DRAFTS)  # computed


@dataclass(slots=True, eq=False)
class Drafting:
    """A row in one call."""

    request: DraftRequest
    num_computed: int
    num_drafts: int  # to be made
    drafts: list[int] = field(default_factory=list)


class ModelDrafter:
    """The Drafter of speculation.method="draft"."""

    def __init__(
        self,
        execute: Callable[[SchedulerOutput], ModelRunnerOutput],
        num_blocks: int,
        block_size: int,
        max_len: int,
        max_tokens: int,
    ):
        """`execute` runs a step of the draft model, whose rows hold `max_len` tokens; one KV group of `num_blocks`.

        `max_tokens` are computed in one step: longer texts take several calls, and have no drafts until then.
        """
        self._execute = execute
        self._blocks = DraftBlocks[ComputedRow](num_blocks, block_size)
        self._max_len = max_len
        self._max_tokens = max_tokens
        self._decode_set: list[int] = []

    def draft(self, requests: Sequence[DraftRequest]) -> list[NDArray[np.int32]]:
        self._blocks.begin()
        drafting = [one for request in requests if (one := self._begun(request)) is not None]
        self._first_step(drafting)
        for number in range(1, max((one.num_drafts for one in drafting), default=0)):
            self._decode([one for one in drafting if one.num_drafts > number])
        for one in drafting:
            row, text = (
                self._blocks.rows[one.request.row],
                np.append(one.request.tokens, np.array(one.drafts, np.int32)),
            )
            row.tokens = text[: len(text) - 1] if one.drafts else text[: one.num_computed]
        made = {one.request.row: np.array(one.drafts, np.int32) for one in drafting}
        return [made.get(request.row, NO_DRAFTS) for request in requests]

    def _begun(self, request: DraftRequest) -> Drafting | None:
        """The row with blocks for its text and drafts; None if it is too long, or there are not enough blocks."""
        num_tokens = len(request.tokens)
        num_drafts = min(request.most, self._max_len - num_tokens)
        if num_drafts <= 0:
            return None
        row = self._blocks.rows.setdefault(request.row, ComputedRow())
        row.tokens = row.tokens[: min(_agreement(row.tokens, request.tokens), num_tokens - 1)]
        if not self._blocks.extend(row, num_tokens + num_drafts - 1):
            return None
        return Drafting(request, len(row.tokens), num_drafts)

    def _first_step(self, drafting: Sequence[Drafting]) -> None:
        """Compute what is not computed of each row's text, and take the first drafts."""
        left, new_rows, chunks, sampling = self._max_tokens, list[NewRow](), list[Chunk](), list[Drafting]()
        for one in drafting:
            tokens = one.request.tokens
            count = min(left, len(tokens) - one.num_computed)
            left -= count
            if one.num_computed + count == len(tokens):
                sampling.append(one)
            else:
                one.num_drafts = 0
            if count:
                new_rows.append(self._new_row(one))
                chunks.append(Chunk(one.request.row, count))
            one.num_computed += count
        if chunks:
            leaves, self._decode_set = self._decode_set, []
            self._take(sampling, new_rows=tuple(new_rows), chunks=tuple(chunks), decode_leaves=pack_ids(leaves))

    def _new_row(self, one: Drafting) -> NewRow:
        row, tokens = one.request.row, one.request.tokens
        blocks = (pack_ids(self._blocks.rows[row].blocks),)
        return NewRow(row, tokens.tobytes(), len(tokens), one.num_computed, blocks, 0, (), GREEDY)

    def _decode(self, drafting: Sequence[Drafting]) -> None:
        """Take one more draft for each row."""
        rows = sorted(one.request.row for one in drafting)
        changes = {
            "decode_leaves": pack_ids(row for row in self._decode_set if row not in rows),
            "decode_joins": pack_ids(row for row in rows if row not in self._decode_set),
        }
        self._decode_set = rows
        self._take(sorted(drafting, key=lambda one: one.request.row), **changes)

    def _take(self, drafting: Sequence[Drafting], **changes: object) -> None:
        """Run a step that samples a token for each of `drafting`, in this order."""
        output = self._execute(SchedulerOutput(NO_EPOCH, NO_STEP, **changes))  # type: ignore[arg-type]
        for one, token in zip(drafting, unpack_ids(output.token_ids), strict=True):
            one.drafts.append(token)


def _agreement(first: NDArray[np.int32], second: NDArray[np.int32]) -> int:
    """The number of leading tokens that are equal."""
    count = min(len(first), len(second))
    different = first[:count] != second[:count]
    return int(different.argmax()) if different.any() else count
