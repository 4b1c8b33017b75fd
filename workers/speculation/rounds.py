"""Samples the positions of a step that verifies drafts, in rounds: the first of each row, then the next of those rows
whose draft was what was sampled.

Between rounds a sampled token becomes part of its row as in plain decoding, so each token is sampled from the same
logits, by the same rules and with the same random number: the tokens are the same bytes. A row without rules needs no
rounds, because its tokens depend on logits, positions and seed alone: all its positions are sampled in the first one,
and those after its first wrong draft are dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..batch.request_rows import RequestRows
from ..batch.token_constraints import Failure
from ..distributed.tensor_parallel import TensorParallelGroup
from ..sampling.device_sampler import DeviceSampling
from ..sampling.logprobs import TokenLogprobs
from ..sampling.sampler import SampledTokens
from .drafts import num_drafts
from .verified_step import VerifiedStep

END = -2  # instead of a token that cannot be emitted: it differs from any draft, and from NO_DRAFT
NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """What one call sampled."""

    indices: NDArray[np.int64]  # [n] of rows, ascending
    places: NDArray[np.int64]  # [n] among the tokens of each row in this step
    is_kept: NDArray[np.bool_]  # [n] the drafts before it were right
    found: SampledTokens  # [n]


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
        depths = np.where(self._state.sampling.has_no_rules[rows], 1 + num_drafts(step.drafts), 1)
        first, going = self._round(logits, step, np.arange(len(rows)), 0, depths)
        rounds = [first]
        going = going[depths[going] == 1]
        while len(going):
            self._state.sampling.start_masks(rows[going])
            found, going = self._round(logits, step, going, len(rounds), np.ones(len(going), np.int64))
            rounds.append(found)
        return joined(rounds, len(rows))

    def _round(
        self, logits: Tensor, step: VerifiedStep, of: NDArray[np.int64], place: int, depths: NDArray[np.int64]
    ) -> tuple[Round, NDArray[np.int64]]:
        """Sample `depths` positions of each of the rows `of` from `place` on. Returns those whose drafts are right."""
        starts = np.cumsum(depths) - depths
        ahead = np.arange(depths.sum()) - np.repeat(starts, depths)
        indices, places = np.repeat(of, depths), place + ahead
        rows = step.arrays.sampled_rows[indices]
        found, seen = self._sample(logits, step.first_logits[indices] + places, rows, ahead)
        wrong = np.append(np.flatnonzero(seen != step.drafts[indices, places]), len(seen))
        lengths = np.minimum(wrong[np.searchsorted(wrong, starts)] - starts + 1, depths)
        is_kept = ahead < np.repeat(lengths, depths)
        self._state.append_runs(rows[is_kept], ahead[is_kept], found.token_ids[is_kept])
        lasts = starts + lengths - 1
        return Round(indices, places, is_kept, found), of[seen[lasts] == step.drafts[of, places[lasts]]]

    def _sample(
        self, logits: Tensor, places: NDArray[np.int64], rows: NDArray[np.int64], ahead: NDArray[np.int64]
    ) -> tuple[SampledTokens, NDArray[np.int64]]:
        """One token for each of `rows`, from the logits at its place; and the same tokens, with END where rows end."""
        if self._group.rank == 0:
            found = self._sampling.launch(_at(logits, places), rows, self._state, ahead).result()
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
    """The tokens that are kept, in the order of rows, and the number of tokens of each row."""
    counts = np.bincount(np.concatenate([each.indices[each.is_kept] for each in rounds]), minlength=num_rows)
    starts = np.cumsum(counts) - counts
    token_ids = np.empty(counts.sum(), np.int64)
    bad: list[int] = []
    logprobs: dict[int, TokenLogprobs] = {}
    failures: dict[int, Failure] = {}
    for each in rounds:
        kept, found = each.is_kept, each.found
        numbers = np.where(kept, starts[each.indices] + each.places, -1)
        token_ids[numbers[kept]] = found.token_ids[kept]
        bad += numbers[found.bad[kept[found.bad]]].tolist()
        logprobs |= {int(numbers[index]): one for index, one in found.logprobs.items() if kept[index]}
        failures |= {int(numbers[index]): failure for index, failure in found.failures.items() if kept[index]}
    in_order = dict(sorted(logprobs.items()))
    return SampledTokens(token_ids, np.array(sorted(bad), np.int64), in_order, failures), counts
