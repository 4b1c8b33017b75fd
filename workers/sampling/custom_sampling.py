"""Runs the plugins' logits processors before sampling: on the host, whatever the sampler's device.

All later steps, log-probabilities included, use the changed logits. Rows without processors cost nothing. A request
ends if a processor raises, leaves a NaN or +infinity, or excludes every token that the request's other rules allow.
"""

import logging
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..batch.request_rows import RequestRows
from ..batch.token_constraints import MAX_REASON_CHARS, Failure
from .device_sampler import DeviceSampling, PendingSample
from .logits_processors import Classes, RowProcessors, WrongArguments
from .logprobs import TokenLogprobs
from .sampler import Ahead, SampledTokens

EXCLUDED = np.float32(-1e30)  # replaces -infinity, because a model's logits are finite; the probability is 0
PARAM = "logits_processors"

log = logging.getLogger(__name__)


class CustomSampling:
    """A DeviceSampling that runs logits processors before another DeviceSampling."""

    def __init__(self, sampling: DeviceSampling, processors: RowProcessors):
        self._sampling = sampling
        self._processors = processors

    def needs_tokens(self, rows: NDArray[np.int64], state: RequestRows) -> bool:
        return bool(state.sampling.is_custom[rows].any()) or self._sampling.needs_tokens(rows, state)

    def launch(self, logits: Tensor, rows: NDArray[np.int64], state: RequestRows, ahead: Ahead = 0) -> PendingSample:
        failures, excluded = dict[int, Failure](), dict[int, NDArray[np.bool_]]()
        for index in np.flatnonzero(state.sampling.is_custom[rows]).tolist():
            host: NDArray[np.float32] = logits[index].numpy(force=True)  # on the CPU, a view of the same memory
            if not np.isfinite(host).all():
                continue  # a fault of the model: the sampler reports it, and the row is computed again
            try:
                if reason := self._apply(host, int(rows[index]), state):
                    failures[index] = Failure(reason)
            except WrongArguments as error:
                failures[index] = Failure(f"{PARAM}: {error}"[:MAX_REASON_CHARS], PARAM)
            if index in failures:
                continue
            excluded[index] = host <= EXCLUDED
            if logits.device.type != "cpu":
                logits[index] = torch.from_numpy(host)
        sample = self._sampling.launch(logits, rows, state, ahead)
        return CustomSample(sample, failures, excluded) if failures or excluded else sample

    def prompt_logprobs(self, logits: Tensor, tokens: NDArray[np.int64], count: int) -> TokenLogprobs:
        return self._sampling.prompt_logprobs(logits, tokens, count)

    def _apply(self, logits: NDArray[np.float32], row: int, state: RequestRows) -> str:
        """Change one row's logits [vocab] float32 in place. Returns the error, or ""; on error they stay unchanged.

        Raises WrongArguments before any change.
        """
        kept, name = logits.copy(), ""
        tokens, asked = state.tokens(row), state.sampling.custom[row]
        tokens.flags.writeable = False  # of this view only
        try:
            for params, processor in zip(asked, self._processors.of(row, state, asked), strict=True):
                name = params.name
                processor.apply(logits, tokens, int(state.prompt_len[row]))
        except WrongArguments:
            raise
        except Exception as error:  # a plugin's error ends its request and nothing else
            log.warning("a logits processor failed name=%s", name, exc_info=True)
            logits[:] = kept
            return f"logits processor {name}: {type(error).__name__}: {error}"[:MAX_REASON_CHARS]
        if not (logits < np.inf).all():
            logits[:] = kept
            return f"logits processor {name} left a logit that is NaN or +infinity"
        np.maximum(logits, EXCLUDED, out=logits)
        return ""


def with_processors(
    sampling: DeviceSampling, classes: Classes | None, vocab_size: int, num_rows: int
) -> DeviceSampling:
    """Wrap `sampling` with the plugins' logits processors; without plugins, return it unchanged."""
    return CustomSampling(sampling, RowProcessors(classes, vocab_size, num_rows)) if classes else sampling


@dataclass(frozen=True, slots=True)
class CustomSample:
    """A sample in which some rows have no token. By index: the failure, the tokens that are excluded."""

    sample: PendingSample
    failures: dict[int, Failure]
    excluded: dict[int, NDArray[np.bool_]]  # [vocab]

    @property
    def token_ids(self) -> Tensor:
        return self.sample.token_ids

    def result(self) -> SampledTokens:
        found = self.sample.result()
        failures = found.failures | self.failures
        for index, excluded in self.excluded.items():
            if index not in failures and excluded[found.token_ids[index]]:
                failures[index] = Failure("logits processors exclude every token that the request's other rules allow")
        if not failures:
            return found
        return replace(
            found,
            bad=np.setdiff1d(found.bad, [*failures]),
            logprobs={index: one for index, one in found.logprobs.items() if index not in failures},
            failures=failures,
        )
