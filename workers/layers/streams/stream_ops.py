"""The interface of the operations of models with several residual streams for each token (AltUp)."""

from typing import Protocol

import torch
from torch import Tensor

from ..embedding import Table

# In place of 0 in norms without an epsilon: a row of equal elements becomes zeros, not NaN.
NO_EPS = 1e-30


class Deviations(Protocol):
    """Measures rows of one size."""

    def __call__(self, x: Tensor) -> Tensor:
        """The standard deviation of each row of `x` [tokens, size], or its root mean square: [tokens, 1] float32."""
        ...


class StreamOps(Protocol):
    """A row's bits depend only on that row. A result is valid until the same operation is called again.

    Streams are float32, [tokens * streams, size], those of a token side by side.
    """

    def deviations(self, size: int, dtype: torch.dtype, *, is_centred: bool) -> Deviations:
        """For rows of `size` elements; centred: standard deviations, else root mean squares."""
        ...

    def wide(self, table: Table) -> Table:
        """The same table, whose rows are float32."""
        ...

    def memory(self, role: str, rows: int, size: int) -> Tensor:
        """[rows, size] float32, with any contents. Valid until the same role is requested again."""
        ...

    def rounded(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """`x` [tokens, size] float32 in `dtype`, contiguous; rows of `x` may be those of one stream."""
        ...

    def mix(self, streams: Tensor, weights: Tensor, out: Tensor) -> Tensor:
        """Set the streams `out` of each token to sums of `streams`, times `weights` [tokens, outputs * inputs].

        `weights` are float32: those of the first output, then those of the second, ...
        """
        ...

    def scale_rows(self, x: Tensor, factors: Tensor, out: Tensor | None = None) -> Tensor:
        """`x` [tokens, size], whose rows may be strided, times `factors` [tokens, 1] float32, rounded once.

        The result is written to `out` if given, which may be one stream of each token.
        """
        ...
