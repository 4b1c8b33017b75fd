"""What torch itself computes between kernels."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

ATEN = torch.ops.aten
VIEWS = {
    ATEN.alias.default,
    ATEN.detach.default,
    ATEN.expand.default,
    ATEN.flatten.using_ints,
    ATEN.select.int,
    ATEN.slice.Tensor,
    ATEN.to.dtype,
    ATEN.unsqueeze.default,
    ATEN.view.default,
    ATEN.view.dtype,
}


def shares_memory(result: Tensor, x: Tensor) -> bool:
    """Whether the result of one of VIEWS is a view of `x`: `flatten` may copy it, and `to` converts it."""
    return result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


class TorchWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Records the operations that torch itself computes, and its allocations, in this thread."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.computed: set[str] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Called by torch. If it were True, the first call would import torch.compile, which takes 0.75 s."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in VIEWS or not shares_memory(result, args[0]):
            self.computed.add(str(func))
        return result
