"""A started step, and its output once its tokens are known."""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from paged_serve.protocol.messages.worker import ModelRunnerOutput, RowPooled, RowPromptLogprobs, SchedulerOutput

from ..batch.staging import HostCopy
from ..pooling.rows import PendingPooled
from ..sampling.device_sampler import PendingSample
from ..sampling.sampler import SampledTokens
from .step_output import row_failures, row_logprobs

NO_TOKENS = np.zeros(0, np.int64)


@dataclass(slots=True, eq=False)
class PendingStep:
    """A started step. ModelRunner.result waits for it; results must be taken in the order of starting."""

    plan: SchedulerOutput
    started: float
    rows: NDArray[np.int64]  # rows that get a token
    places: NDArray[np.int64]  # the position of that token in each row
    generations: NDArray[np.int64]  # of the rows at the start of the step
    sample: PendingSample | None  # None: no row gets a token
    prompt_logprobs: tuple[RowPromptLogprobs, ...]
    pooling: PendingPooled | None  # None: no row gets a vector
    sampled: SampledTokens | None = None  # None: not known yet
    pooled: tuple[RowPooled, ...] = ()  # known when `sampled` is
    num_drafted: bytes = b""  # as in ModelRunnerOutput
    num_sampled: bytes = b""

    def output(self) -> ModelRunnerOutput:
        assert self.sampled is not None, "the step's tokens are not known yet"
        return ModelRunnerOutput(
            epoch=self.plan.epoch,
            step=self.plan.step,
            token_ids=self.sampled.token_ids.astype("<i4").tobytes(),
            step_s=time.perf_counter() - self.started,
            logprobs=row_logprobs(self.sampled),
            prompt_logprobs=self.prompt_logprobs,
            nan_indices=self.sampled.bad.astype("<i4").tobytes(),
            failures=row_failures(self.sampled),
            pooled=self.pooled,
            num_drafted=self.num_drafted,
            num_sampled=self.num_sampled,
        )


class RemoteSample:
    """Tokens that rank 0 sampled, as seen by another rank."""

    def __init__(self, token_ids: Tensor):
        self.token_ids = token_ids
        self._on_host = HostCopy(token_ids)

    def result(self) -> SampledTokens:
        [token_ids] = self._on_host.wait()
        return SampledTokens(token_ids, NO_TOKENS, {})
