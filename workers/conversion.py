"""Weights in the dtype that a model computes in: rounded, never beyond its range."""

from collections.abc import Callable

import torch
from torch import Tensor

from paged_serve.protocol.errors import ConfigError


def converted(name: str, values: Tensor, dtype: torch.dtype) -> Tensor:
    """`values` of tensor `name` rounded to `dtype`. Raises ConfigError if a finite one becomes infinite."""
    found = values.to(dtype)
    if found is not values:
        check_range(name, found, lambda: values)
    return found


def check_fits(name: str, values: Tensor, dtype: torch.dtype) -> None:
    """Raises ConfigError if rounding `values` of tensor `name` to `dtype` would make a finite one infinite."""
    if torch.finfo(dtype).max >= torch.finfo(values.dtype).max or values.numel() == 0:
        return
    if not all(bool(end.to(dtype).isfinite()) for end in torch.aminmax(values)):
        check_range(name, values.to(dtype), lambda: values)


def check_range(name: str, found: Tensor, values: Callable[[], Tensor]) -> None:
    """Raises ConfigError where `found` is infinite and the `values` that it was rounded from are not.

    These are asked for only if something in `found` is infinite or NaN.
    """
    if found.numel() == 0 or all(bool(end.isfinite()) for end in torch.aminmax(found)):
        return
    before = values()
    lost = before[found.isinf() & before.isfinite()]
    if lost.numel():
        largest, limit = float(lost.abs().max()), torch.finfo(found.dtype).max
        dtype = str(found.dtype).removeprefix("torch.")
        raise ConfigError(
            f"tensor {name} holds {largest:g}, and {dtype} nothing beyond {limit:g} ({lost.numel()} such numbers); "
            "use --dtype bfloat16"
        )
