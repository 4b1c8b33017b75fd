"""Samples the positions of a step that verifies drafts, in rounds: the first of each row, then the next of those rows
whose draft was what was sampled.

Between rounds a sampled token becomes part of its row as in plain decoding, so each token is sampled from the same
logits, by the same rules and with the same random number: the tokens are the same bytes.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..batch.request_rows import RequestRows
from ..distributed.tensor_parallel import TensorParallelGroup
from ..sampling.device_sampler import DeviceSampling
from ..sampling.logprobs import TokenLogprobs
from ..sampling.sampler import SampledTokens
from .verified_step import VerifiedStep

END = -2  # instead of a token that cannot be emitted: it differs from any draft, and from NO_DRAFT
NONE = np.zeros(0, np.int64)

Round = tuple[NDArray[np.int64], SampledTokens]  # (indices of rows, the tokens of these rows)


class Rounds:
    """All ranks take the same rounds: rank 0 samples, and sends the others each round's tokens."""

    def __init__(self, state: RequestRows, group: TensorParallelGroup, sampling: DeviceSampling):
        self._state = state
        self._group = group
        self._sampling = sampling

    def sample(self, logits: Tensor, step: VerifiedStep) -> tuple[SampledTokens, NDArray[np.int64]]:
        """The tokens of all sampled rows, each row's consecutive, and their numbers [sampled].

        `logits` [logit tokens, vocab] are overwritten. The tokens are appended to their rows.
        """
        rows = step.arrays.sampled_rows
        rounds: list[Round] = []
        going = np.arange(len(rows))
        while len(going):
            place = len(rounds)
            found, seen = self._sample(logits, step.first_logits[going] + place, rows[going])
            self._state.append_tokens(rows[going], found.token_ids)
            rounds.append((going, found))
            going = going[seen == step.drafts[going, place]]
            self._state.sampling.start_masks(rows[going])
        return joined(rounds, len(rows))

    def _sample(
        self, logits: Tensor, places: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> tuple[SampledTokens, NDArray[np.int64]]:
        """One token for each row, from the logits at its place; and the same tokens, with END where rows end."""
        if self._group.rank == 0:
            found = self._sampling.launch(_at(logits, places), rows, self._state).result()
            seen = found.token_ids.copy()
            seen[found.bad] = END
            seen[list(found.failures)] = END
        else:
            seen = np.empty(len(rows), np.int64)
        if self._group.size > 1:
            seen = self._group.broadcast(torch.from_numpy(seen).to(logits.device)).numpy(force=True)
        if self._group.rank:
            found = SampledTokens(np.where(seen == END, 0, seen), NONE, {})
        return found, seen


def _at(logits: Tensor, places: NDArray[np.int64]) -> Tensor:
    """The rows of `logits` at ascending places: a view if they are consecutive."""
    first, last = int(places[0]), int(places[-1])
    if last - first + 1 == len(places):
        return logits[first : last + 1]
    return logits[torch.from_numpy(places).to(logits.device)]


def joined(rounds: Sequence[Round], num_rows: int) -> tuple[SampledTokens, NDArray[np.int64]]:
    """The tokens of all rounds in the order of rows, and the number of tokens of each row."""
    counts = np.bincount(np.concatenate([indices for indices, _ in rounds]), minlength=num_rows)
    starts = np.cumsum(counts) - counts
    token_ids = np.empty(counts.sum(), np.int64)
    bad: list[int] = []
    logprobs: dict[int, TokenLogprobs] = {}
    failures: dict[int, str] = {}
    wrong_params: dict[int, str] = {}
    for place, (indices, found) in enumerate(rounds):
        numbers = starts[indices] + place
        token_ids[numbers] = found.token_ids
        bad += numbers[found.bad].tolist()
        logprobs |= {int(numbers[index]): one for index, one in found.logprobs.items()}
        failures |= {int(numbers[index]): reason for index, reason in found.failures.items()}
        wrong_params |= {int(numbers[index]): param for index, param in found.wrong_params.items()}
    in_order = dict(sorted(logprobs.items()))
    return SampledTokens(token_ids, np.array(sorted(bad), np.int64), in_order, failures, wrong_params), counts
