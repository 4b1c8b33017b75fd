"""Numbers of schemas. llguidance reads them as 64-bit floating point, which rounds most integers above 2**53."""

import math
from typing import Any

LEAST = ("minimum", "exclusiveMinimum")
MOST = ("maximum", "exclusiveMaximum")
INT64_MAX = 2**63 - 1  # llguidance limits the bounds of integers to 64 bits
LEAST_INTEGER = -(2**63 - 2**10)  # the least that llguidance takes as a bound of integers


def round_bounds(schema: dict[str, Any]) -> None:
    """Change bounds in place that would be rounded to a wider range. The next narrower bound is exact."""
    for name in (*LEAST, *MOST):
        bound = schema.get(name)
        if type(bound) is int and abs(bound) < INT64_MAX:
            schema[name] = _rounded_inwards(bound, is_least=name in LEAST)
    for name in LEAST:
        bound = schema.get(name)
        if schema.get("type") == "integer" and isinstance(bound, int | float) and bound < LEAST_INTEGER:
            schema[name] = LEAST_INTEGER


def _rounded_inwards(bound: int, *, is_least: bool) -> int:
    rounded = float(bound)
    is_wider = rounded < bound if is_least else rounded > bound
    return int(math.nextafter(rounded, math.inf if is_least else -math.inf)) if is_wider else bound


def unreachable_bound(schema: dict[str, Any]) -> str:
    """The keyword of a bound beyond the 64-bit integers, which llguidance takes of no number; "" if there is none."""
    for name in (*LEAST, *MOST):
        bound = schema.get(name)
        if isinstance(bound, int | float) and (bound >= INT64_MAX if name in LEAST else bound <= -INT64_MAX - 1):
            return name
    return ""


def inexact_number(value: Any) -> int | float | None:
    """A number within a constant that llguidance would replace by another, or cannot read."""
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return next((found for part in parts if (found := inexact_number(part)) is not None), None)
    if isinstance(value, float):
        return None if math.isfinite(value) else value
    if type(value) is not int:
        return None
    try:
        return None if int(float(value)) == value else value
    except OverflowError:
        return value
