"""Parameters of the XTC sampler ("exclude top choices"): names, defaults and meaning of llama.cpp's server."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..errors import InvalidRequest


class Xtc(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Removes, with `probability` in each step, every token of at least `threshold` but the least probable of them.

    The probabilities are those after temperature, min-p, top-k and top-p. Raises InvalidRequest.
    """

    probability: Annotated[float, Meta(ge=0, le=1)]  # 0: off
    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.1  # above 0.5 at most one token reaches it, and none is removed

    def __post_init__(self) -> None:
        for name in ("probability", "threshold"):
            value: Any = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value <= 1:  # also true for NaN
                raise InvalidRequest(
                    f"xtc.{name} is {value!r:.100}; it must be a number between 0 and 1", f"xtc_{name}"
                )
