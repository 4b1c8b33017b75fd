"""Sampling parameters on the device: records (copied together, and only if changed), masks and seen tokens."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...batch.penalties import Penalties
from ...batch.request_rows import RequestRows
from ...batch.sampling_columns import NO_LOGPROBS, SamplingColumns
from ...batch.token_constraints import Failure
from ...kernels.cuda.sampling import ADJUSTMENT, GREEDY, MAY_BE_MASKED, ROW
from ...sampling.sampler import Ahead

Records = NDArray[np.void]


@dataclass(frozen=True, slots=True)
class StepRecords:
    """The records of one step, with dtypes ROW, ADJUSTMENT and int32."""

    rows: Records  # [n]
    adjustments: Records  # for rows that have any
    words: NDArray[np.int32]  # data to which adjustments point
    logprobs: Records  # ROWs, for rows that request log-probabilities
    failures: dict[int, Failure]  # by index, of rows whose grammars allow no token
    rule_failures: dict[int, Failure]  # by index, should the row's constraints leave no token


@dataclass(frozen=True, slots=True)
class SentRecords:
    """StepRecords on the device, as bytes [n, size of a record]; `words` as int32."""

    rows: Tensor
    adjustments: Tensor
    words: Tensor
    logprobs: Tensor


class Residents:
    """Masks and seen tokens of requests, which are on the device from their first step.

    The device itself counts a penalised row's new tokens. The host's counts are sent again only if the row has a new
    request, or if its output is not exactly one token longer than when it was last sampled.
    """

    def __init__(self, vocab_size: int, device: torch.device):
        self._words = -(-vocab_size // 32)
        self._vocab_size = vocab_size
        self._device = device
        self._masks: dict[int, tuple[NDArray[np.int32], Tensor]] = {}  # by row: what was copied, and its copy
        self._seen: dict[int, Tensor] = {}  # [1 + capacity, 2] int32
        self._counted: dict[int, tuple[Penalties, int]] = {}  # by row: penalties, next output position

    def mask(self, row: int, bits: NDArray[np.int32] | None) -> int:
        """The address of a row's mask of allowed tokens, which is copied again if its bits change; 0: all allowed."""
        if bits is None:
            self._masks.pop(row, None)
            return 0
        copied, mask = self._masks.get(row, (None, None))
        if mask is None:
            mask = torch.empty(self._words, dtype=torch.int32, device=self._device)
        if copied is None or not np.array_equal(copied, bits):
            _copy_to(mask, bits)
            self._masks[row] = bits.copy(), mask
        return mask.data_ptr()

    def seen(self, row: int, penalties: Penalties | None, position: int, capacity: int) -> int:
        """The address of a row's seen tokens before the token at `position`; 0: nothing is penalised."""
        if penalties is None:
            self._seen.pop(row, None)
            self._counted.pop(row, None)
            return 0
        if row not in self._seen:
            self._seen[row] = torch.empty((1 + capacity, 2), dtype=torch.int32, device=self._device)
        known, expected = self._counted.get(row, (None, -1))
        if known is not penalties or expected != position:
            entries = np.empty((1 + penalties.num_distinct, 2), np.int32)
            entries[0] = 0, penalties.num_distinct
            entries[1:, 0] = penalties.distinct[: penalties.num_distinct]
            entries[1:, 1] = penalties.output_counts[entries[1:, 0]]
            _copy_to(self._seen[row][: len(entries)], entries)
        self._counted[row] = penalties, position + 1
        return self._seen[row].data_ptr()


class RowRecords:
    """The records of steps, and their copies on the device."""

    def __init__(self, vocab_size: int, device: torch.device):
        self._vocab_size = vocab_size
        self._device = device
        self._residents = Residents(vocab_size, device)
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)
        self._sent = np.empty(0, np.uint8)  # the contents of the buffer, in which the device advances the positions

    def records(self, rows: NDArray[np.int64], state: RequestRows, ahead: Ahead = 0) -> StepRecords:
        """The records of one step for `rows`, of which those without rules may occur several times."""
        columns = state.sampling
        found = np.zeros(len(rows), ROW)
        found["seed"] = columns.seed[rows]
        found["position"] = state.next_positions(rows) + ahead
        for name in ("top_p", "xtc_probability", "xtc_threshold", "temperature", "log_min_p", "top_k"):
            found[name] = getattr(columns, name)[rows]
        found["flags"] = columns.greedy[rows] * GREEDY + columns.adjusted[rows] * MAY_BE_MASKED
        found["source"] = found["index"] = np.arange(len(rows))
        adjustments, words = self._adjustments(rows, state)
        failures = columns.grammar_failures(rows, np.flatnonzero(columns.is_masked[rows]))
        by_rule = columns.rule_failures(rows, np.flatnonzero(columns.adjusted[rows]))
        return StepRecords(
            found, adjustments, words, logprob_records(rows, columns, self._vocab_size), failures, by_rule
        )

    def send(self, records: StepRecords) -> SentRecords:
        """Copy the records, unless they equal those of the last step except that every position is one further."""
        parts = [
            np.ascontiguousarray(part).view(np.uint8).reshape(-1)
            for part in (records.rows, records.logprobs, records.adjustments, records.words)
        ]
        sizes = [len(part) for part in parts]
        wanted = np.concatenate(parts)
        if len(wanted) > len(self._buffer):
            self._buffer = torch.empty(2 * len(wanted), dtype=torch.uint8, device=self._device)
            self._sent = np.empty(0, np.uint8)
        if not np.array_equal(wanted, self._sent):
            _copy_to(self._buffer[: len(wanted)], wanted)
            self._sent = wanted
        self._sent[: sizes[0]].view(ROW)["position"] += 1  # as the scan does
        rows, logprobs, adjustments, words = torch.split_with_sizes(self._buffer[: len(wanted)], sizes)
        return SentRecords(
            rows=rows.view(-1, ROW.itemsize),
            adjustments=adjustments.view(-1, ADJUSTMENT.itemsize),
            words=words.view(torch.int32),
            logprobs=logprobs.view(-1, ROW.itemsize),
        )

    def _adjustments(self, rows: NDArray[np.int64], state: RequestRows) -> tuple[Records, NDArray[np.int32]]:
        columns = state.sampling
        indices = np.flatnonzero(columns.adjusted[rows])
        found = np.zeros(len(indices), ADJUSTMENT)
        mask_of = columns.await_masks(rows[indices]).tolist()
        words: list[NDArray[np.int32]] = [np.zeros(0, np.int32)]
        num_words = 0

        def put(*lists: NDArray[np.int32]) -> int:
            nonlocal num_words
            start = num_words
            words.extend(lists)
            num_words += sum(map(len, lists))
            return start

        for place, index in enumerate(indices.tolist()):
            row, record = int(rows[index]), found[place]
            constraints, penalties = columns.constraints[row], columns.penalties[row]
            record["source"] = record["index"] = index
            record["allowed"] = self._residents.mask(row, columns.masks[row] if mask_of[place] >= 0 else None)
            if constraints is not None and not columns.is_forced(row):
                forbidden = np.array(constraints.forbidden_after(state.output(row)), np.int32)
                record["forbidden"], record["num_forbidden"] = put(forbidden), len(forbidden)
                biased = constraints.biased.astype(np.int32), constraints.bias.view(np.int32)
                record["biased"], record["num_biased"] = put(*biased), len(biased[0])
            position = int(state.length[row] - state.prompt_len[row])
            capacity = min(state.token_ids.shape[1], self._vocab_size)
            record["seen"] = self._residents.seen(row, penalties, position, capacity)
            if penalties is not None:
                for name in ("repetition", "frequency", "presence"):
                    record[name] = getattr(penalties, name)
            if (repetitions := columns.repetitions[row]) is not None:
                ids, lost = repetitions.after(state.tokens(row))
                record["repeating"], record["num_repeating"] = put(ids.astype(np.int32), lost.view(np.int32)), len(ids)
        return found, np.concatenate(words)


def logprob_records(rows: NDArray[np.int64], columns: SamplingColumns, vocab_size: int) -> Records:
    """Records for the rows of a step that request log-probabilities; each refers to the logits of its row."""
    asked = columns.logprobs[rows]
    indices = np.flatnonzero(asked != NO_LOGPROBS)
    return raw_records(indices, np.where(asked < 0, vocab_size, np.minimum(asked, vocab_size))[indices], vocab_size)


def raw_records(indices: NDArray[np.int64], counts: NDArray[np.int64], vocab_size: int) -> Records:
    """ROWs with which a cut keeps the `counts` best raw logits, with consecutive lists."""
    found = np.zeros(len(indices), ROW)
    found["source"] = found["index"] = indices
    found["temperature"] = found["top_p"] = 1
    found["log_min_p"] = -np.inf
    found["top_k"] = np.where(counts < vocab_size, counts, 0)
    found["list"] = np.where(counts > 0, np.cumsum(counts) - counts, -1)
    return found


def _copy_to(target: Tensor, source: NDArray[np.generic]) -> None:
    """Copy without waiting: torch does not reuse pinned memory before a copy from it has completed."""
    staged = torch.empty(target.shape, dtype=target.dtype, pin_memory=target.is_cuda)
    target.copy_(staged.copy_(torch.from_numpy(source)), non_blocking=True)
