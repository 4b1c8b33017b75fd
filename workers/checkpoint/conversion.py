"""Converts weights to the model's dtype, and checks that they are finite and within its range."""

from collections.abc import Callable

import torch
from torch import Tensor

from paged_serve.protocol.errors import ConfigError

from .safetensors_files import Checkpoint


class NotFiniteError(ValueError):
    """Packed weights contain a NaN or an infinity; `find_not_finite` finds the tensor."""


def converted(name: str, values: Tensor, dtype: torch.dtype) -> Tensor:
    """The `values` of tensor `name`, rounded to `dtype`. Raises ConfigError as `check_finite` does."""
    found = values.to(dtype)
    check_finite(name, found, lambda: values)
    return found


def check_finite(name: str, found: Tensor, values: Callable[[], Tensor]) -> None:
    """Raises ConfigError with the reason if `found` is not finite: the `values` before rounding are not finite either,
    or exceed the range of the dtype. `values` is called only then.
    """
    if found.numel() == 0 or all(bool(end.isfinite()) for end in torch.aminmax(found)):
        return
    before, found = values().cpu(), found.cpu()
    lost = before[found.isinf() & before.isfinite()]
    if lost.numel():
        largest, limit = float(lost.abs().max()), torch.finfo(found.dtype).max
        dtype = str(found.dtype).removeprefix("torch.")
        raise ConfigError(
            f"tensor {name} holds {largest:g}, beyond the range of {dtype}, {limit:g} ({lost.numel()} such numbers); "
            "use --dtype bfloat16"
        )
    count = found.numel() - int(found.isfinite().sum())
    raise ConfigError(
        f"tensor {name} holds NaN or infinity ({count} such numbers of {found.numel()}): the checkpoint is damaged, or "
        "its training failed; download it again"
    )


def find_not_finite(checkpoint: Checkpoint, dtype: torch.dtype) -> None:
    """Read all used tensors again, and raise ConfigError naming the first that is not finite in `dtype`."""
    for name in sorted(checkpoint.used):
        entry = checkpoint.entries[name]
        if entry.dtype in checkpoint.floats:
            converted(name, checkpoint.read(name, tuple(entry.shape)), dtype)
