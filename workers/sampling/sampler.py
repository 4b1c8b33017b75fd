"""Samples one token for each row of logits. The steps do not commute, so their order is fixed:

1. log-probabilities, if requested, from the raw logits: they describe the model, not the request's parameters;
2. only the forced end of reasoning, if it is due; otherwise the grammar, allowed tokens, bad words, min_tokens,
   logit_bias (`reasoning`, `grammars`, `constraints`);
3. repetition, frequency and presence penalties (`penalties`), then DRY (`repetitions`);
4. greedy rows take the best token, the lowest id among equals, and are done;
5. temperature, then min-p, then top-k, then top-p, then XTC (`truncation`);
6. a draw with the random number for (request seed, output position) (`philox`, `draw`).

A row's result depends only on its own logits, parameters, tokens and seed, bit for bit. If the logits are not finite,
the row's token is 0 and its index is in `bad`. If its grammar or other rules leave no token, the token is 0 and the
reason is in `failures`. A row that only has a mask is read as often as a row without one.

All steps run on the host. Passes over whole rows of logits are implemented by `passes`, in numpy or in the CPU kernels;
the other steps process only a row's own tokens and parameters.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..batch.request_rows import RequestRows
from ..batch.sampling_columns import NO_LOGPROBS, SamplingColumns
from ..batch.token_constraints import Failure
from .logprobs import TokenLogprobs
from .passes import NO_TOKEN, Passes

Ahead = NDArray[np.int64] | int  # how many tokens after each row's next one the sampled token comes; [n], or of all


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The result for n rows, in their order."""

    token_ids: NDArray[np.int64]  # [n]
    bad: NDArray[np.int64]  # indices of rows whose token must not be emitted
    logprobs: dict[int, TokenLogprobs]  # by index, for rows that requested them
    failures: dict[int, Failure] = field(default_factory=dict)  # by index, of rows without a token


class Sampler:
    """Stateless: all state of requests is in RequestRows."""

    def __init__(self, passes: Passes):
        self._passes = passes

    def sample(self, logits: Tensor, rows: NDArray[np.int64], state: RequestRows, ahead: Ahead = 0) -> SampledTokens:
        """Sample from logits [n, vocab] float32, which are overwritten, one token for each of `rows`.

        Only rows without rules (SamplingColumns.has_no_rules) may occur several times, each time further `ahead`.
        """
        host: NDArray[np.float32] = logits.numpy(force=True)
        columns = state.sampling
        best, finite = self._passes.scan(host)
        best[~finite] = NO_TOKEN
        is_adjusted = columns.adjusted[rows] & finite
        is_wanted = (columns.logprobs[rows] != NO_LOGPROBS) & finite
        adjusted, wanted = np.flatnonzero(is_adjusted), np.flatnonzero(is_wanted)
        raw = host[is_adjusted & is_wanted]
        mask_of = np.full(len(rows), -1)
        if len(adjusted):
            mask_of[adjusted] = columns.await_masks(rows[adjusted])
            now = adjusted[columns.greedy[rows[adjusted]] | columns.has_rules[rows[adjusted]]]
            if len(now):
                self._adjust_now(host, best, now, mask_of, rows, state)
        drawn = np.flatnonzero(~columns.greedy[rows] & (best != NO_TOKEN))
        if len(drawn):
            positions = (state.next_positions(rows) + ahead)[drawn]
            numbers = columns.random(rows[drawn], positions), columns.exclusions(rows[drawn], positions)
            held = columns.masks, mask_of[drawn]
            best[drawn] = self._passes.draw(host, best[drawn], drawn, rows[drawn], columns, *numbers, *held)
        bad = best == NO_TOKEN
        best[bad] = 0
        failures = dict[int, Failure]()
        if bad.any():
            empty = np.flatnonzero(bad & finite)
            failures = columns.rule_failures(rows, empty) | columns.grammar_failures(rows, empty)
        logprobs = {}
        if len(wanted):
            is_raw = columns.adjusted[rows[wanted]]
            logprobs = self._logprobs(host, wanted[~is_raw], wanted[~is_raw], best, rows, columns)
            logprobs |= self._logprobs(raw, np.arange(len(raw)), wanted[is_raw], best, rows, columns)
        logprobs = {i: logprobs[i] for i in sorted(logprobs) if not bad[i]}
        bad[list(failures)] = False
        return SampledTokens(best, np.flatnonzero(bad), logprobs, failures)

    def _adjust_now(
        self,
        host: NDArray[np.float32],
        best: NDArray[np.int64],
        indices: NDArray[np.int64],
        mask_of: NDArray[np.int64],
        rows: NDArray[np.int64],
        state: RequestRows,
    ) -> None:
        """Apply steps 2 and 3 in place to the rows at `indices`; their `mask_of` becomes -1, as their mask is applied.

        Rows that need only a mask are not among `indices`: their draw applies it.
        """
        masked = indices[mask_of[indices] >= 0]
        if len(masked):
            best[masked] = self._passes.mask(host, masked, state.sampling.masks, mask_of[masked])
            mask_of[masked] = -1
        changed = indices[state.sampling.has_rules[rows[indices]]]
        if len(changed):
            _adjust(host, changed, rows, state)
            best[changed] = self._best(host, changed)
            best[changed[np.isneginf(host[changed, best[changed]])]] = NO_TOKEN

    def _best(self, host: NDArray[np.float32], indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The best token of each row at `indices`. To read all rows is cheaper than to copy more than half of them."""
        if 2 * len(indices) > len(host):
            return self._passes.scan(host)[0][indices]
        return self._passes.scan(host[indices])[0]

    def _logprobs(
        self,
        logits: NDArray[np.float32],
        places: NDArray[np.int64],
        indices: NDArray[np.int64],
        tokens: NDArray[np.int64],
        rows: NDArray[np.int64],
        columns: SamplingColumns,
    ) -> dict[int, TokenLogprobs]:
        """Logprobs of the rows at `indices`, whose raw logits are at `places`, by index in the step."""
        if not len(indices):
            return {}
        counts = _counts(columns.logprobs[rows[indices]], logits.shape[1])
        found = self._passes.logprobs(logits, places, tokens[indices], counts)
        by_index = {
            index: TokenLogprobs(
                found.token_ids[i : i + 1, : 1 + count], found.logprobs[i : i + 1, : 1 + count], found.ranks[i : i + 1]
            )
            for i, (index, count) in enumerate(zip(indices.tolist(), counts.tolist(), strict=True))
        }
        for place, index in zip(places.tolist(), indices.tolist(), strict=True):
            if (named := columns.logprob_tokens[rows[index]]) is not None:
                by_index[index] = self._of_named(logits, place, np.concatenate(([tokens[index]], named)))
        return by_index

    def _of_named(self, logits: NDArray[np.float32], place: int, tokens: NDArray[np.int64]) -> TokenLogprobs:
        """Logprobs of named tokens of one row, with the same bits as among the best tokens."""
        each = np.zeros(len(tokens), np.int64)
        found = self._passes.logprobs(logits, each + place, tokens, each)
        return TokenLogprobs(tokens.astype(np.int32)[None], found.logprobs[:, 0][None], found.ranks[:1])

    def prompt_logprobs(self, logits: Tensor, tokens: NDArray[np.int64], count: int) -> TokenLogprobs:
        """Logprobs of prompt tokens [n], from the logits [n, vocab] of their predecessors; non-finite ones become 0."""
        host: NDArray[np.float32] = logits.numpy(force=True)
        if not np.isfinite(host).all():
            host = np.nan_to_num(host, nan=0.0, posinf=0.0, neginf=0.0)
        each = np.arange(len(host))
        return self._passes.logprobs(host, each, tokens, _counts(np.full(len(host), count), host.shape[1]))


def _counts(asked: NDArray[np.int64], vocab_size: int) -> NDArray[np.int64]:
    """The number of best tokens per row; -1 means all."""
    counts: NDArray[np.int64] = np.where(asked < 0, vocab_size, np.minimum(asked, vocab_size))
    return counts


def _adjust(host: NDArray[np.float32], indices: NDArray[np.int64], rows: NDArray[np.int64], state: RequestRows) -> None:
    """Apply steps 2 and 3, except masks, in place to the rows at `indices`."""
    columns = state.sampling
    for index in indices.tolist():
        row = int(rows[index])
        constraints, penalties = columns.constraints[row], columns.penalties[row]
        if constraints is not None and not columns.is_forced(row):
            constraints.apply(host[index], state.output(row))
        if penalties is not None:
            penalties.apply(host[index])
        if (repetitions := columns.repetitions[row]) is not None:
            repetitions.apply(host[index], state.tokens(row))
