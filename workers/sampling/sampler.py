"""One token for each row of logits. The order of the steps matters, because they do not commute:

1. log-probabilities, where asked for, from the raw logits: they describe the model, not the request's parameters;
2. allowed tokens, bad words, min_tokens, logit_bias (`constraints`);
3. repetition, frequency and presence penalties (`penalties`);
4. greedy rows take the best token, the lowest id among equals, and are done;
5. temperature, then min-p, then top-k, then top-p (`truncation`);
6. a draw with the random number of (the request's seed, the output position) (`philox`, `draw`).

A row's result depends on its own logits, parameters, tokens and seed, bit for bit. Logits that are not finite, and
rules that leave no token to choose, give token 0 and the row's index in `bad`.

All of it runs on the host in numpy: arithmetic there is exactly rounded or, where it is not (exp, sums), tiled so
that a row's place in the batch cannot matter (`weights`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..request_rows import RequestRows
from .columns import NO_LOGPROBS, SamplingColumns
from .draw import draw
from .logprobs import TokenLogprobs, token_logprobs
from .truncation import apply_min_p, apply_top_k, apply_top_p
from .weights import WeightBuffer


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The answer for n rows, in their order."""

    token_ids: NDArray[np.int64]  # [n]
    bad: NDArray[np.int64]  # indices of rows whose token must not be emitted
    logprobs: dict[int, TokenLogprobs]  # by index, of the rows that asked


class Sampler:
    """Holds scratch memory only; everything about requests is in the RequestRows."""

    def __init__(self, vocab_size: int):
        self._buffer = WeightBuffer(vocab_size)

    def sample(self, logits: Tensor, rows: NDArray[np.int64], state: RequestRows) -> SampledTokens:
        """Sample from logits [n, vocab] float32, which are overwritten, one token for each of the distinct `rows`."""
        host: NDArray[np.float32] = logits.numpy(force=True)
        best = _argmax(host)
        bad = ~np.isfinite(host[np.arange(len(host)), best]) | ~np.isfinite(host.min(axis=1))
        host[bad] = 0.0
        raw = self._keep_raw(host, rows, state.sampling)
        adjusted = np.flatnonzero(state.sampling.adjusted[rows] & ~bad)
        if len(adjusted):
            _adjust(host, adjusted, rows, state)
            best[adjusted] = _argmax(host[adjusted])
            bad[adjusted] = np.isneginf(host[adjusted, best[adjusted]])
            host[bad] = 0.0
        best[bad] = 0
        drawn = np.flatnonzero(~state.sampling.greedy[rows] & ~bad)
        if len(drawn):
            best[drawn] = self._draw(host, best[drawn], drawn, rows, state)
        return SampledTokens(best, np.flatnonzero(bad), self._logprobs(raw, best, bad, rows, state.sampling))

    def _draw(
        self,
        host: NDArray[np.float32],
        best: NDArray[np.int64],
        indices: NDArray[np.int64],
        rows: NDArray[np.int64],
        state: RequestRows,
    ) -> NDArray[np.int64]:
        """Tokens for the rows at `indices`, a slab at a time; `best` is each one's argmax."""
        random = state.sampling.random(rows[indices], state.next_positions(rows[indices]))
        tokens = np.empty(len(indices), np.int64)
        for start in range(0, len(indices), self._buffer.rows):
            slab = slice(start, start + self._buffer.rows)
            part = indices[slab]
            # A batch of plain rows is contiguous: a slice of it is a view, where an index array would copy.
            whole = len(part) == part[-1] - part[0] + 1
            logits = host[part[0] : part[-1] + 1] if whole else host[part]
            weights = self._weights(logits, best[slab], rows[part], state.sampling)
            tokens[slab] = draw(weights, random[slab])
        return tokens

    def _weights(
        self, logits: NDArray[np.float32], best: NDArray[np.int64], rows: NDArray[np.int64], columns: SamplingColumns
    ) -> NDArray[np.float32]:
        """What is left of the distribution after steps 5: [m, vocab] logits -> [m, padded] weights, not normalised."""
        shifted = self._buffer.shifted(logits, logits[np.arange(len(logits)), best])
        np.divide(shifted, columns.temperature[rows][:, None], out=shifted)
        min_p = np.flatnonzero(columns.log_min_p[rows] > -np.inf)
        if len(min_p):
            kept = shifted[min_p]
            apply_min_p(kept, columns.log_min_p[rows[min_p]])
            shifted[min_p] = kept
        weights = np.exp(shifted, out=shifted)
        top_k, top_p = columns.top_k[rows], columns.top_p[rows]
        by_rank = np.flatnonzero(top_k > 0)
        if len(by_rank):
            kept = weights[by_rank]
            apply_top_k(kept, logits[by_rank], top_k[by_rank], top_p[by_rank])
            weights[by_rank] = kept
        by_mass = np.flatnonzero((top_k == 0) & (top_p < 1.0))
        if len(by_mass):
            kept = weights[by_mass]
            apply_top_p(kept, logits[by_mass], top_p[by_mass])
            weights[by_mass] = kept
        return weights

    def _keep_raw(
        self, host: NDArray[np.float32], rows: NDArray[np.int64], columns: SamplingColumns
    ) -> dict[int, NDArray[np.float32]]:
        """Raw logits by index of the rows that want log-probabilities; copied where they will be adjusted."""
        wanted = np.flatnonzero(columns.logprobs[rows] != NO_LOGPROBS)
        return {int(i): host[i].copy() if columns.adjusted[rows[i]] else host[i] for i in wanted}

    def _logprobs(
        self,
        raw: dict[int, NDArray[np.float32]],
        tokens: NDArray[np.int64],
        bad: NDArray[np.bool_],
        rows: NDArray[np.int64],
        columns: SamplingColumns,
    ) -> dict[int, TokenLogprobs]:
        return {
            i: token_logprobs(row[None], tokens[i : i + 1], int(columns.logprobs[rows[i]]), self._buffer)
            for i, row in raw.items()
            if not bad[i]
        }

    def prompt_logprobs(self, logits: Tensor, tokens: NDArray[np.int64], count: int) -> TokenLogprobs:
        """Of prompt tokens [n], each under the logits [n, vocab] that its predecessor gave; not finite ones read 0."""
        host: NDArray[np.float32] = logits.numpy(force=True)
        if not np.isfinite(host).all():
            host = np.nan_to_num(host, nan=0.0, posinf=0.0, neginf=0.0)
        return token_logprobs(host, tokens, count, self._buffer)


def _argmax(logits: NDArray[np.float32]) -> NDArray[np.int64]:
    """The lowest id of each row's highest logit; that of a NaN where there is one."""
    best: NDArray[np.int64] = logits.argmax(axis=1)
    return best


def _adjust(host: NDArray[np.float32], indices: NDArray[np.int64], rows: NDArray[np.int64], state: RequestRows) -> None:
    """Steps 2 and 3, in place, for the rows at `indices`."""
    for index in indices.tolist():
        row = int(rows[index])
        constraints, penalties = state.sampling.constraints[row], state.sampling.penalties[row]
        if constraints is not None:
            constraints.apply(host[index], state.output(row))
        if penalties is not None:
            penalties.apply(host[index])
