"""Adapts the host's sampler to the DeviceSampling interface: it waits for the logits, and tokens are known at once."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..batch.request_rows import RequestRows
from .logprobs import TokenLogprobs
from .sampler import Ahead, SampledTokens, Sampler


class HostSample:
    """A PendingSample that is complete."""

    def __init__(self, sampled: SampledTokens, device: torch.device):
        self.token_ids = torch.from_numpy(sampled.token_ids).to(device)
        self._sampled = sampled

    def result(self) -> SampledTokens:
        return self._sampled


class HostSampling:
    """Samples logits on the CPU, and on devices that have no sampler."""

    def __init__(self, sampler: Sampler):
        self._sampler = sampler

    def needs_tokens(self, rows: NDArray[np.int64], state: RequestRows) -> bool:
        return bool(state.sampling.adjusted[rows].any())

    def launch(self, logits: Tensor, rows: NDArray[np.int64], state: RequestRows, ahead: Ahead = 0) -> HostSample:
        return HostSample(self._sampler.sample(logits, rows, state, ahead), logits.device)

    def prompt_logprobs(self, logits: Tensor, tokens: NDArray[np.int64], count: int) -> TokenLogprobs:
        return self._sampler.prompt_logprobs(logits, tokens, count)
