"""The runner's interface to asynchronous sampling: tokens stay on the device, where the next step needs them."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..batch.request_rows import RequestRows
from .logprobs import TokenLogprobs
from .sampler import Ahead, SampledTokens


class PendingSample(Protocol):
    """Tokens that are sampled, or will be, on the device."""

    @property
    def token_ids(self) -> Tensor:
        """[n] i64 on the device."""
        ...

    def result(self) -> SampledTokens:
        """Wait for the tokens."""
        ...


class DeviceSampling(Protocol):
    """Samples on a device. Methods without a docstring are documented in Sampler."""

    def needs_tokens(self, rows: NDArray[np.int64], state: RequestRows) -> bool:
        """Whether `launch` for these rows reads tokens of earlier steps from `state`, so that they must be known."""
        ...

    def launch(
        self, logits: Tensor, rows: NDArray[np.int64], state: RequestRows, ahead: Ahead = 0
    ) -> PendingSample: ...

    def prompt_logprobs(self, logits: Tensor, tokens: NDArray[np.int64], count: int) -> TokenLogprobs: ...
