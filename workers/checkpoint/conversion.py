"""Converts weights to the dtype that a model computes in, and checks that they are finite and within its range."""

from collections.abc import Callable

import torch
from torch import Tensor

from paged_serve.protocol.errors import ConfigError

from .safetensors_files import FLOATS, Checkpoint


class NotFiniteError(ValueError):
    """Weights hold a NaN or an infinity once they are packed; `find_not_finite` names them."""


def converted(name: str, values: Tensor, dtype: torch.dtype) -> Tensor:
    """`values` of tensor `name` rounded to `dtype`. Raises ConfigError as `check_finite`."""
    found = values.to(dtype)
    check_finite(name, found, lambda: values)
    return found


def check_finite(name: str, found: Tensor, values: Callable[[], Tensor]) -> None:
    """Raises ConfigError when `found` is not finite, with the reason: the `values` that it was rounded from are not
    finite either, or exceed the range of its dtype. `values` is called only then.
    """
    if found.numel() == 0 or all(bool(end.isfinite()) for end in torch.aminmax(found)):
        return
    before, found = values().cpu(), found.cpu()
    lost = before[found.isinf() & before.isfinite()]
    if lost.numel():
        largest, limit = float(lost.abs().max()), torch.finfo(found.dtype).max
        dtype = str(found.dtype).removeprefix("torch.")
        raise ConfigError(
            f"tensor {name} holds {largest:g}, and {dtype} nothing beyond {limit:g} ({lost.numel()} such numbers); "
            "use --dtype bfloat16"
        )
    count = found.numel() - int(found.isfinite().sum())
    raise ConfigError(
        f"tensor {name} holds NaN or infinity ({count} such numbers of {found.numel()}): the checkpoint is damaged, or "
        "its training failed; download it again"
    )


def find_not_finite(checkpoint: Checkpoint, dtype: torch.dtype) -> None:
    """Raises ConfigError naming the first tensor in use that is not finite in `dtype`; reads all of them again."""
    for name in sorted(checkpoint.used):
        entry = checkpoint.entries[name]
        if entry.dtype in FLOATS:
            converted(name, checkpoint.read(name, tuple(entry.shape)), dtype)
