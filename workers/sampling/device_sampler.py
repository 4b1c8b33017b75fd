"""Sampling as a runner sees it that does not wait: tokens stay where the next step needs them."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..batch.request_rows import RequestRows
from .logprobs import TokenLogprobs
from .sampler import SampledTokens


class PendingSample(Protocol):
    """Tokens that are on the device, or will be."""

    @property
    def token_ids(self) -> Tensor:
        """[n] i64 on the device."""
        ...

    def result(self) -> SampledTokens:
        """Waits for them."""
        ...


class DeviceSampling(Protocol):
    """What is not described here is in Sampler."""

    def needs_tokens(self, rows: NDArray[np.int64], state: RequestRows) -> bool:
        """Whether `launch` for these rows looks at tokens of earlier steps in `state`, which must be known then."""
        ...

    def launch(self, logits: Tensor, rows: NDArray[np.int64], state: RequestRows) -> PendingSample: ...

    def prompt_logprobs(self, logits: Tensor, tokens: NDArray[np.int64], count: int) -> TokenLogprobs: ...
