"""The inputs that operations of recurrent layers had at drafts, so that states can advance by the accepted ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


class Copies(Protocol):
    """Memory for copies of tensors [tokens, n], by role."""

    def copied(self, role: str, x: Tensor) -> Tensor:
        """A contiguous copy of `x`, whose rows may be strided."""
        ...

    def copy_of(self, role: str, tokens: int, columns: int, dtype: torch.dtype) -> Tensor:
        """The last copy of the role, which had as many tokens, columns and this dtype."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class DraftCall:
    """An operation on one layer's states: operation(rows, states, weights, *inputs)."""

    operation: Callable[..., Tensor]
    copies: Copies
    group: int
    states: Tensor
    weights: Any
    inputs: Sequence[tuple[str, int, torch.dtype]]  # role, columns, dtype

    def again(self, rows: Any, tokens: int) -> None:
        inputs = [self.copies.copy_of(role, tokens, columns, dtype) for role, columns, dtype in self.inputs]
        self.operation(rows, self.states, self.weights, *inputs)


class DraftInputs:
    """The calls of a step with drafts, one for each operation of each layer, and copies of their inputs.

    The calls of all steps are the same. A step that replays recorded kernels renews the copies only.
    """

    def __init__(self) -> None:
        self._calls: dict[tuple[str, int], DraftCall] = {}  # by operation and address of the layer's states
        self.tokens = slice(0)  # of the step, all drafts among them: their inputs are kept

    def keep(
        self,
        operation: Callable[..., Tensor],
        copies: Copies,
        group: int,
        states: Tensor,
        weights: Any,
        inputs: Sequence[Tensor],
    ) -> None:
        """Copy `inputs` [tokens, n] of a call."""
        key, number = (operation.__name__, states.data_ptr()), len(self._calls)
        if key not in self._calls:
            roles = [(f"draft {number}.{place}", each.shape[1], each.dtype) for place, each in enumerate(inputs)]
            self._calls[key] = DraftCall(operation, copies, group, states, weights, roles)
        for (role, _, _), each in zip(self._calls[key].inputs, inputs, strict=True):
            copies.copied(role, each[self.tokens])

    def again(self, rows_of_group: Callable[[int], Any]) -> None:
        """Repeat all calls with the copied inputs, for the rows that `rows_of_group` gives for a KV group.

        Tokens are counted from the first of `tokens`.
        """
        for call in self._calls.values():
            call.again(rows_of_group(call.group), self.tokens.stop - self.tokens.start)
