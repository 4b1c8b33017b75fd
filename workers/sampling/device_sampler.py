"""Asynchronous sampling, as the runner sees it: tokens stay on the device, where the next step needs them."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..batch.request_rows import RequestRows
from .logprobs import TokenLogprobs
from .sampler import SampledTokens


class PendingSample(Protocol):
    """Sampled tokens, which are on the device or will be."""

    @property
    def token_ids(self) -> Tensor:
        """[n] i64 on the device."""
        ...

    def result(self) -> SampledTokens:
        """Wait for the tokens."""
        ...


class DeviceSampling(Protocol):
    """Methods without a docstring are as in Sampler."""

    def needs_tokens(self, rows: NDArray[np.int64], state: RequestRows) -> bool:
        """Whether `launch` for these rows reads tokens of earlier steps in `state`, which must be known by then."""
        ...

    def launch(self, logits: Tensor, rows: NDArray[np.int64], state: RequestRows) -> PendingSample: ...

    def prompt_logprobs(self, logits: Tensor, tokens: NDArray[np.int64], count: int) -> TokenLogprobs: ...
