"""Why a row has no token, although its logits are finite."""

from typing import NamedTuple

MAX_REASON_CHARS = 256


class Failure(NamedTuple):
    """Ends the row's request."""

    reason: str
    param: str = ""  # the parameter of the request that is the cause; "": none is


def none_left(param: str) -> Failure:
    """The failure of a row whose rule `param` forbids the tokens that were left."""
    return Failure(f"{param} forbids every token that the request's other rules allow", param)
