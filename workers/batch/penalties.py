"""Penalties on tokens seen before: repetition over prompt and output, frequency and presence over the output only."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paged_serve.protocol.messages.sampling_params import SamplingParams

LEAST_REPETITION = 1e-30  # with a smaller penalty logits become infinite, or NaN if a rule forbids their tokens


@dataclass(slots=True)
class Penalties:
    """The tokens that one row has seen. A step's time grows with the number of distinct tokens, not the vocabulary."""

    repetition: np.float32
    frequency: np.float32
    presence: np.float32
    output_counts: NDArray[np.int32]  # [vocab]
    seen: NDArray[np.bool_]  # [vocab], whether the token is in prompt or output
    distinct: NDArray[np.int64]  # ids of seen tokens: the first num_distinct entries of a growing buffer
    num_distinct: int

    @classmethod
    def prepare(
        cls, params: SamplingParams, token_ids: NDArray[np.int32], prompt_len: int, vocab_size: int
    ) -> "Penalties | None":
        """The state of a row that starts with these tokens, prompt then output; None when nothing is penalised."""
        if params.repetition_penalty == 1.0 and params.frequency_penalty == 0.0 and params.presence_penalty == 0.0:
            return None
        ids = np.unique(token_ids).astype(np.int64)
        seen = np.zeros(vocab_size, np.bool_)
        seen[ids] = True
        return cls(
            repetition=np.float32(max(params.repetition_penalty, LEAST_REPETITION)),
            frequency=np.float32(params.frequency_penalty),
            presence=np.float32(params.presence_penalty),
            output_counts=np.bincount(token_ids[prompt_len:], minlength=vocab_size).astype(np.int32),
            seen=seen,
            distinct=np.concatenate((ids, np.zeros(64, np.int64))),
            num_distinct=len(ids),
        )

    def append(self, token: int) -> None:
        """Count an output token."""
        self.output_counts[token] += 1
        if not self.seen[token]:
            self.seen[token] = True
            if self.num_distinct == len(self.distinct):
                self.distinct = np.concatenate((self.distinct, np.zeros_like(self.distinct)))
            self.distinct[self.num_distinct] = token
            self.num_distinct += 1

    def apply(self, logits: NDArray[np.float32]) -> None:
        """Penalise one row [vocab] in place: scale by the repetition penalty, then subtract the other two."""
        ids = self.distinct[: self.num_distinct]
        value = logits[ids]
        value = np.where(value > 0, value / self.repetition, value * self.repetition)
        counts = self.output_counts[ids]
        value -= self.frequency * counts.astype(np.float32)
        value -= self.presence * (counts > 0).astype(np.float32)
        logits[ids] = value
