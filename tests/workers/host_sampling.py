"""The host's sampler behind the calls of a device's."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_serve.workers.batch.request_rows import RequestRows
from paged_serve.workers.sampling.logprobs import TokenLogprobs
from paged_serve.workers.sampling.sampler import SampledTokens, Sampler


class HostSample:
    """It is there already."""

    def __init__(self, sampled: SampledTokens, device: torch.device):
        self.token_ids = torch.from_numpy(sampled.token_ids).to(device)
        self._sampled = sampled

    def result(self) -> SampledTokens:
        return self._sampled


class HostSampling:
    """The host's Sampler, which waits for logits, where a device's would be."""

    def __init__(self, sampler: Sampler):
        self._sampler = sampler

    def needs_tokens(self, rows: NDArray[np.int64], state: RequestRows) -> bool:
        return bool(state.sampling.adjusted[rows].any())

    def launch(self, logits: Tensor, rows: NDArray[np.int64], state: RequestRows) -> HostSample:
        return HostSample(self._sampler.sample(logits, rows, state), logits.device)

    def prompt_logprobs(self, logits: Tensor, tokens: NDArray[np.int64], count: int) -> TokenLogprobs:
        return self._sampler.prompt_logprobs(logits, tokens, count)
