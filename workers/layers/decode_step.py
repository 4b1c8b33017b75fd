"""The execution of steps in which every token is sampled: through Python, or as a replay of an earlier step."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from torch import Tensor

from ..batch.input_batch import InputBatch

Inputs = Callable[[], InputBatch]  # gathers the rows' inputs on the device
Logits = Callable[[InputBatch], Tensor]  # a model's forward pass over one cache, [tokens, vocab] float32


class DecodeStep(Protocol):
    """The forward pass of a decode set, from the gathered inputs to the logits.

    The inputs for a given `num_rows` have the same addresses each time.
    """

    @property
    def sizes(self) -> Sequence[int]:
        """The numbers of rows to prepare before the first step, in an order that is the same on all ranks.

        If there are any, everything that a pass reads or writes must keep its address.
        """
        ...

    def prepare(self, num_rows: int, inputs: Inputs, logits: Logits) -> None:
        """Prepare a replay of `logits(inputs())`."""
        ...

    def padded(self, num_rows: int) -> int:
        """The number of rows, padding included, with which to run a step of `num_rows`."""
        ...

    def __call__(self, num_rows: int, inputs: Inputs, logits: Logits) -> Tensor:
        """`logits(inputs())`, [num_rows, vocab], or its replay. Valid until the next step."""
        ...

    def verify(self, inputs: Inputs, logits: Logits) -> Tensor:
        """`logits(inputs())`, [tokens, vocab], of rows with several tokens, or its replay. Valid until the next step.

        The inputs for given numbers of rows and tokens have the same addresses each time.
        """
        ...

    def queue(self) -> AbstractContextManager[object]:
        """A context for a model's passes that are not replays, in which only kernels and torch read results of kernels.

        Kernels may run later than they are called, at the latest when the context ends.
        """
        ...


class EagerDecodeStep:
    """Runs every step through Python."""

    sizes: Sequence[int] = ()

    def prepare(self, num_rows: int, inputs: Inputs, logits: Logits) -> None:
        raise AssertionError("there are no sizes to prepare")

    def padded(self, num_rows: int) -> int:
        return num_rows

    def __call__(self, num_rows: int, inputs: Inputs, logits: Logits) -> Tensor:
        return logits(inputs())

    def verify(self, inputs: Inputs, logits: Logits) -> Tensor:
        return logits(inputs())

    def queue(self) -> AbstractContextManager[object]:
        return nullcontext()
