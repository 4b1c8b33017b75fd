"""Sampling on the device that holds the logits. The steps and their order are those of `Sampler`.

As there, a draw is the first token, in order of ids, at which the cumulative weight exceeds the uniform number of
(seed, position). The host's sampler adds weights as floats, a device as integers: the two choose the same token unless
the number is within about 10^-7 of a border between two tokens. Results on different devices are equal in every bit.

Nothing here waits for the device, so the next step can be launched from `PendingTokens.token_ids` before the host has
read them. The device itself counts new tokens for penalties. Only bad words of several tokens, grammars, repetitions
and nearly exhausted thinking budgets are evaluated on the host; `needs_tokens` tells whether the host must first know
the previous step's tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...batch.request_rows import RequestRows
from ...batch.staging import HostCopy
from ...batch.token_constraints import Failure
from ...kernels.cuda.kernel import Launcher
from ...kernels.cuda.sampling import NONE_LEFT, STATE, WEIGHT_OF_BEST, Blocks, RowPasses, SamplerKernels
from ...sampling.logprobs import TokenLogprobs
from ...sampling.sampler import Ahead, SampledTokens
from .sampling_records import Records, RowRecords, raw_records

NamedTokens = NDArray[np.int64] | None


class DeviceSampler:
    """Samples on the device. All state of requests is in RequestRows; one sampler must see all its steps in order."""

    def __init__(self, launcher: Launcher, vocab_size: int, device: torch.device | str, blocks: Blocks | None = None):
        self._device = torch.device(device)
        self._vocab_size = vocab_size
        self._kernels = SamplerKernels(launcher, vocab_size, self._device, blocks)
        self._rows = RowRecords(vocab_size, self._device)

    def needs_tokens(self, rows: NDArray[np.int64], state: RequestRows) -> bool:
        """Whether `state` must hold the latest tokens of these rows instead of placeholders."""
        columns = state.sampling
        for row, position in zip(rows.tolist(), state.next_positions(rows).tolist(), strict=True):
            reasoning = columns.reasonings[row]
            looks_back = columns.grammars[row] is not None or columns.repetitions[row] is not None
            if looks_back or (reasoning is not None and reasoning.may_force(position)):
                return True
        constraints = (columns.constraints[row] for row in rows.tolist())
        return any(one is not None and any(len(prefix) for prefix, _ in one.bad_words) for one in constraints)

    def sample(self, logits: Tensor, rows: NDArray[np.int64], state: RequestRows) -> SampledTokens:
        """Launch, and wait for the result."""
        return self.launch(logits, rows, state).result()

    def launch(self, logits: Tensor, rows: NDArray[np.int64], state: RequestRows, ahead: Ahead = 0) -> "PendingTokens":
        """Sample from logits [n, vocab] float32, which are overwritten, one token for each of `rows`.

        Only rows without rules (SamplingColumns.has_no_rules) may occur several times, each time further `ahead`.
        """
        records = self._rows.records(rows, state, ahead)
        sent = self._rows.send(records)
        token_ids = torch.empty(len(rows), dtype=torch.int64, device=self._device)
        bad = torch.empty(len(rows), dtype=torch.uint8, device=self._device)
        raw = logits
        if len(records.logprobs) and (len(records.adjustments) or records.rows["xtc_probability"].any()):
            raw = logits.clone()
        if len(records.adjustments):
            self._kernels.adjust(logits, sent.adjustments, sent.words)
        self._draw(self._kernels.over(logits, sent.rows, token_ids, bad), records.rows)
        if len(records.adjustments) and records.adjustments["seen"].any():
            self._kernels.count(logits, sent.adjustments, sent.words, token_ids)
        logprobs = None
        if len(records.logprobs):
            named = [state.sampling.logprob_tokens[rows[index]] for index in records.logprobs["index"].tolist()]
            logprobs = self._logprobs(raw, records.logprobs, sent.logprobs, token_ids, named)
        return PendingTokens(token_ids, bad, logprobs, records.failures, records.rule_failures)

    def prompt_logprobs(self, logits: Tensor, tokens: NDArray[np.int64], count: int) -> TokenLogprobs:
        """Log-probabilities of prompt tokens [n] under their predecessors' logits [n, vocab]; non-finite: 0."""
        finite = torch.nan_to_num(logits, nan=0.0, posinf=0.0, neginf=0.0)
        count = self._vocab_size if count < 0 else min(count, self._vocab_size)
        records = raw_records(np.arange(len(tokens)), np.full(len(tokens), count), self._vocab_size)
        sent = torch.from_numpy(records.view(np.uint8).reshape(len(records), -1)).to(self._device)
        pending = self._logprobs(finite, records, sent, torch.from_numpy(tokens).to(self._device), [None] * len(tokens))
        _wait(self._device)
        each = [pending.result(place, int(token)) for place, token in enumerate(tokens)]
        return TokenLogprobs(
            token_ids=np.concatenate([one.token_ids for one in each]),
            logprobs=np.concatenate([one.logprobs for one in each]),
            ranks=np.concatenate([one.ranks for one in each]),
        )

    def _draw(self, passes: RowPasses, records: Records) -> None:
        """Launch the passes that at least one row needs."""
        drawn = records[records["flags"] & 1 == 0]
        passes.scan()
        if drawn["top_k"].any():
            passes.cut(by_mass=False)
        if (drawn["top_p"] < 1).any():
            passes.cut(by_mass=True)
        if drawn["xtc_probability"].any():
            passes.exclude()
        if len(drawn):
            passes.draw()

    def _logprobs(
        self, logits: Tensor, records: Records, sent: Tensor, token_ids: Tensor, named: Sequence[NamedTokens]
    ) -> "PendingLogprobs":
        """Start log-probabilities; `named`: for each record, the tokens to list instead of the best ones."""
        listed = np.where(records["list"] < 0, 0, np.where(records["top_k"] > 0, records["top_k"], self._vocab_size))
        lists = torch.empty(int(listed.sum()), dtype=torch.int64, device=self._device)
        passes = self._kernels.over(logits, sent, token_ids, lists=lists)
        passes.scan()
        passes.rank()
        if records["top_k"].any():
            passes.cut(by_mass=False)
        if len(lists):
            passes.gather()
        asked = [
            None if tokens is None else self._named(logits[source], tokens)
            for source, tokens in zip(records["source"].tolist(), named, strict=True)
        ]
        return PendingLogprobs(
            records["index"], listed, records["list"], _to_host(passes.states), _to_host(lists), asked
        )

    def _named(self, logits: Tensor, tokens: NDArray[np.int64]) -> "NamedLogits":
        """The raw logits of the named `tokens` of one row."""
        return NamedLogits(tokens, _to_host(logits[torch.from_numpy(tokens).to(self._device)]))


@dataclass(frozen=True, slots=True)
class NamedLogits:
    """The raw logits of named tokens of one row."""

    tokens: NDArray[np.int64]  # [k]
    values: Tensor  # [k] float32


@dataclass(frozen=True, slots=True)
class PendingLogprobs:
    """Log-probabilities of m rows, in host memory when the device has finished."""

    indices: NDArray[np.int32]  # [m], indices into the step's rows
    counts: NDArray[np.int64]  # [m]
    starts: NDArray[np.int64]  # [m], offsets into `lists`
    states: Tensor  # [m, STATE.itemsize] bytes
    lists: Tensor  # int64
    named: Sequence[NamedLogits | None]  # [m]

    def result(self, place: int, token: int) -> TokenLogprobs:
        """The log-probabilities of the m-th row, whose token is `token`."""
        state = self.states[place].numpy().view(STATE)[0]
        start, count = int(self.starts[place]), int(self.counts[place])
        keys = np.sort(self.lists[start : start + count].numpy().view(np.uint64)) if count else np.zeros(0, np.uint64)
        normaliser = float(state["top"]) + math.log(int(state["total"]) / WEIGHT_OF_BEST)
        listed, logits = (keys & np.uint64(0xFFFFFFFF)).astype(np.int32), _logits_of(keys)
        if (named := self.named[place]) is not None:
            listed, logits = named.tokens.astype(np.int32), named.values.numpy().astype(np.float64)
        logits = np.concatenate(([float(state["chosen"])], logits))
        return TokenLogprobs(
            token_ids=np.concatenate(([token], listed), dtype=np.int32)[None],
            logprobs=(logits - normaliser).astype(np.float32)[None],
            ranks=np.array([int(state["rank"]) + 1], np.int32),
        )


class PendingTokens:
    """The result of a launch. Later launches may read the tensors on the device."""

    def __init__(
        self,
        token_ids: Tensor,
        bad: Tensor,
        logprobs: PendingLogprobs | None,
        failures: dict[int, Failure],
        rule_failures: dict[int, Failure],
    ):
        self.token_ids = token_ids  # [n] int64
        self.bad = bad  # [n] uint8, not 0 where the token must not be emitted: 1, or NONE_LEFT
        self._logprobs = logprobs
        self._failures = failures
        self._rule_failures = rule_failures
        self._on_host = HostCopy(token_ids, bad)

    def result(self) -> SampledTokens:
        """Wait for this step, but not for later ones."""
        token_ids, bad = self._on_host.wait()
        empty = np.flatnonzero(bad == NONE_LEFT).tolist()
        failures = {index: one for index in empty if (one := self._rule_failures.get(index))} | self._failures
        bad[list(failures)] = 1
        logprobs = {}
        if self._logprobs is not None:
            for place, index in enumerate(self._logprobs.indices.tolist()):
                if not bad[index]:
                    logprobs[index] = self._logprobs.result(place, int(token_ids[index]))
        bad[list(failures)] = 0
        return SampledTokens(token_ids, np.flatnonzero(bad), logprobs, failures)


def _logits_of(keys: NDArray[np.uint64]) -> NDArray[np.float64]:
    """The logits encoded in rank keys."""
    ordered = ~(keys >> np.uint64(32)).astype(np.uint32)
    bits = np.where(ordered >> np.uint32(31), ordered & np.uint32(0x7FFFFFFF), ~ordered).astype(np.uint32)
    return bits.view(np.float32).astype(np.float64)


def _to_host(tensor: Tensor) -> Tensor:
    """An asynchronous copy to the host; later launches may overwrite the source."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return host.copy_(tensor, non_blocking=True)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
