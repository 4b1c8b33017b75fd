"""DRY: penalises tokens that would continue a repetition; the penalty grows with the length of the repetition.

The algorithm is p-e-w's (https://github.com/oobabooga/text-generation-webui/pull/5677). Penalties depend only on a
row's tokens, so a restored row has the same penalties.
"""

from dataclasses import dataclass
from itertools import accumulate, repeat

import numpy as np
from numpy.typing import NDArray

from paged_serve.protocol.messages.samplers import MAX_MATCH, Dry

MAX_PENALTY = 1e6  # finite, so that a token that the grammar requires remains possible


@dataclass(frozen=True, slots=True)
class Repetitions:
    """One row's rules, prepared once at admission."""

    allowed_length: int
    last_n: int  # tokens searched for repetitions; -1: all
    is_breaker: NDArray[np.bool_]  # [vocab]
    penalties: NDArray[np.float32]  # indexed by the excess of a repetition over the allowed length, in tokens

    @classmethod
    def prepare(cls, dry: Dry | None, vocab_size: int) -> "Repetitions | None":
        """The rules of a request; None when DRY is off."""
        if dry is None or not dry.is_on:
            return None
        is_breaker = np.zeros(vocab_size, np.bool_)
        is_breaker[list(dry.breaker_token_ids)] = True
        # Repeated products, because the bits of a library's power function may differ between machines.
        powers = accumulate(
            repeat(dry.base, MAX_MATCH), lambda power, base: min(power * base, MAX_PENALTY), initial=1.0
        )
        penalties = np.minimum(np.array(list(powers)) * dry.multiplier, MAX_PENALTY).astype(np.float32)
        return cls(dry.allowed_length, dry.penalty_last_n, is_breaker, penalties)

    def after(self, tokens: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The penalties of a row with these tokens (prompt and output): distinct ids [k], and their penalties [k]."""
        if self.last_n >= 0:
            tokens = tokens[max(0, len(tokens) - self.last_n) :]
        ends, lengths = self._repetitions(tokens)
        continued = tokens[ends + 1].astype(np.int64)
        is_meant = (lengths >= self.allowed_length) & ~self.is_breaker[continued]
        ids, which = np.unique(continued[is_meant], return_inverse=True)
        longest = np.zeros(len(ids), np.int64)
        np.maximum.at(longest, which, lengths[is_meant])
        return ids, self.penalties[longest - self.allowed_length]

    def _repetitions(self, tokens: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Earlier occurrences of the end of `tokens`: end positions [k], and numbers of matching tokens [k]."""
        last = len(tokens) - 1
        if last < 1 or self.is_breaker[tokens[last]]:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        ends = np.flatnonzero(tokens[:last] == tokens[last])
        lengths = np.ones(len(ends), np.int64)
        alike = np.arange(len(ends))
        for length in range(1, MAX_MATCH):
            if length > last or self.is_breaker[tokens[last - length]]:
                break
            alike = alike[ends[alike] >= length]
            alike = alike[tokens[ends[alike] - length] == tokens[last - length]]
            if not len(alike):
                break
            lengths[alike] += 1
        return ends, lengths

    def apply(self, logits: NDArray[np.float32], tokens: NDArray[np.int32]) -> None:
        """Apply the penalties, in place, to one row [vocab] with these tokens."""
        ids, penalties = self.after(tokens)
        logits[ids] -= penalties
