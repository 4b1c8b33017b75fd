"""The log-probabilities and failures of a step, as protocol messages."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from paged_serve.protocol.messages.worker import Chunk, RowFailure, RowLogprobs, RowPromptLogprobs

from ..batch.request_rows import RequestRows
from ..sampling.logprobs import TokenLogprobs
from ..sampling.sampler import SampledTokens

PROMPT_LOGITS_AT_ONCE = 64  # positions: bounds the logits of a chunk with prompt_logprobs to 64 x vocabulary floats
RowLogits = Callable[[Tensor, int], Tensor]  # of hidden states [n, hidden] of a row


class PromptSampler(Protocol):
    def prompt_logprobs(self, logits: Tensor, tokens: NDArray[np.int64], count: int) -> TokenLogprobs:
        """See Sampler."""
        ...


class PromptLogprobs:
    """Computes prompt log-probabilities for rows that request them, for each prompt token that the step predicts.

    It does not keep the runner's function for logits: without a cycle of references, a runner ends with its last user.
    """

    def __init__(self, sampler: PromptSampler, rows: RequestRows):
        self._sampler = sampler
        self._rows = rows

    def find(
        self,
        chunks: Sequence[Chunk],
        first_index: int,
        row_starts: NDArray[np.integer[Any]],
        hidden: Tensor,
        logits: RowLogits,
    ) -> tuple[RowPromptLogprobs, ...]:
        """Prompt log-probabilities of `chunks`.

        Chunk i is row r = `first_index` + i of the batch; its tokens start at row_starts[r] in `hidden`.
        """
        found = []
        for index, chunk in enumerate(chunks, start=first_index):
            count = self._rows.prompt_logprobs[chunk.row]
            if count is not None:
                first = int(self._rows.num_computed[chunk.row])
                predicted = min(chunk.num_tokens, int(self._rows.prompt_len[chunk.row]) - 1 - first)
                if predicted > 0:
                    start = int(row_starts[index])
                    targets = self._rows.token_ids[chunk.row, first + 1 : first + 1 + predicted].astype(np.int64)
                    logprobs = self._logprobs_of(hidden[start : start + predicted], targets, count, chunk.row, logits)
                    found.append(_prompt_logprobs(chunk.row, first + 1, logprobs))
        return tuple(found)

    def _logprobs_of(
        self, hidden: Tensor, targets: NDArray[np.int64], count: int, row: int, logits: RowLogits
    ) -> list[TokenLogprobs]:
        """Log-probabilities in consecutive parts. `hidden` [n, hidden]; `targets` [n] are the tokens that follow."""
        parts = []
        for start in range(0, len(targets), PROMPT_LOGITS_AT_ONCE):
            part = slice(start, start + PROMPT_LOGITS_AT_ONCE)
            parts.append(self._sampler.prompt_logprobs(logits(hidden[part], row), targets[part], count))
        return parts


def row_failures(sampled: SampledTokens) -> tuple[RowFailure, ...]:
    """The rows without a token."""
    return tuple(RowFailure(index, *failure) for index, failure in sampled.failures.items())


def row_logprobs(sampled: SampledTokens) -> tuple[RowLogprobs, ...]:
    """Log-probabilities of the rows that request them."""
    return tuple(
        RowLogprobs(
            index=index,
            token_ids=found.token_ids.astype("<i4").tobytes(),
            logprobs=found.logprobs.astype("<f4").tobytes(),
            rank=int(found.ranks[0]),
        )
        for index, found in sampled.logprobs.items()
    )


def _prompt_logprobs(row: int, start: int, parts: Sequence[TokenLogprobs]) -> RowPromptLogprobs:
    return RowPromptLogprobs(
        row=row,
        start=start,
        token_ids=b"".join(part.token_ids.astype("<i4").tobytes() for part in parts),
        logprobs=b"".join(part.logprobs.astype("<f4").tobytes() for part in parts),
        ranks=b"".join(part.ranks.astype("<i4").tobytes() for part in parts),
    )
