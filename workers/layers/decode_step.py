"""How the steps of the decode set alone are done: through Python, or by what was made of an earlier one."""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from ..batch.input_batch import InputBatch

Inputs = Callable[[], InputBatch]  # gathers what the device knows of the rows
Logits = Callable[[InputBatch], Tensor]  # a model's pass over one cache, [rows, vocab] float32


class DecodeStep(Protocol):
    """A decode set's pass, from the gathered inputs down to the logits.

    Inputs of `num_rows` lie at the same addresses each time.
    """

    @property
    def sizes(self) -> Sequence[int]:
        """The numbers of rows to prepare before the first step, in an order that is the same on all ranks.

        Where there are any, everything that a pass reads or writes stays where it is.
        """
        ...

    def prepare(self, num_rows: int, inputs: Inputs, logits: Logits) -> None:
        """Make ready what does `logits(inputs())` again."""
        ...

    def padded(self, num_rows: int) -> int:
        """With how many rows a step of `num_rows` is best done."""
        ...

    def __call__(self, num_rows: int, inputs: Inputs, logits: Logits) -> Tensor:
        """`logits(inputs())`, [num_rows, vocab], or what was made in its place. Valid until the next step."""
        ...


class EagerDecodeStep:
    """Through Python each time."""

    sizes: Sequence[int] = ()

    def prepare(self, num_rows: int, inputs: Inputs, logits: Logits) -> None:
        raise AssertionError("it has no sizes")

    def padded(self, num_rows: int) -> int:
        return num_rows

    def __call__(self, num_rows: int, inputs: Inputs, logits: Logits) -> Tensor:
        return logits(inputs())
