"""Numbers of schemas. llguidance reads them as 64-bit floating point, which rounds most integers above 2**53."""

import math
from decimal import Decimal
from typing import Any

LEAST = ("minimum", "exclusiveMinimum")
MOST = ("maximum", "exclusiveMaximum")
INT64_MAX = 2**63 - 1  # llguidance limits bounds to 64 bits
LARGEST = 2**63 - 2**10  # below, in floating point
LARGEST_COUNT = 2**32 - 1  # of a repetition in llguidance's expressions; no output has as many characters
_LEAST_COUNTS, _MOST_COUNTS = ("minLength", "minItems", "minProperties"), ("maxLength", "maxItems", "maxProperties")
ONE_SIDED = 10**18  # from here on llguidance takes no bound without the opposite one


def round_bounds(schema: dict[str, Any]) -> None:
    """Replace bounds in place that llguidance would widen or refuse by the next narrower ones that it enforces."""
    is_integer = schema.get("type") == "integer"
    for name in (*LEAST, *MOST):
        bound = schema.get(name)
        if type(bound) is int and abs(bound) < INT64_MAX:
            schema[name] = _rounded_inwards(bound, is_least=name in LEAST, is_integer=is_integer)
    least, most = _bounds(schema, LEAST), _bounds(schema, MOST)
    schema |= {name: -LARGEST for name, bound in least.items() if bound < -LARGEST}
    largest = INT64_MAX if is_integer else LARGEST
    schema |= {name: largest for name, bound in most.items() if bound > largest}
    if least and not most and max(least.values()) >= ONE_SIDED:
        schema["maximum"] = LARGEST
    if most and not least and min(most.values()) <= -ONE_SIDED:
        schema["minimum"] = -LARGEST


def _bounds(schema: dict[str, Any], names: tuple[str, ...]) -> dict[str, int | float]:
    return {name: schema[name] for name in names if isinstance(schema.get(name), int | float)}


def _rounded_inwards(bound: int, *, is_least: bool, is_integer: bool) -> int:
    rounded, narrower = float(bound), math.inf if is_least else -math.inf
    while _is_wider(rounded, bound, is_least, is_integer):
        rounded = math.nextafter(rounded, narrower)
    return int(rounded)


def _is_wider(rounded: float, bound: int, is_least: bool, is_integer: bool) -> bool:
    """Whether `rounded` would allow more than `bound`. Where other numbers than integers are allowed, llguidance takes
    the shortest decimal that reads as `rounded`, filled with zeros."""
    enforced = {int(rounded)} if is_integer else {int(rounded), int(Decimal(repr(rounded)))}
    return min(enforced) < bound if is_least else max(enforced) > bound


def unreachable_bound(schema: dict[str, Any]) -> str:
    """The keyword of a bound beyond the 64-bit integers, which llguidance takes of no number; "" if there is none."""
    least, most = _bounds(schema, LEAST), _bounds(schema, MOST)
    return next((name for name, bound in (least | most).items() if (bound if name in LEAST else -bound) > LARGEST), "")


def fix_counts(schema: dict[str, Any]) -> str:
    """Change counts in place to ones that llguidance reads: 2.0 is an integer, too. Returns the keyword of a count that
    no output reaches; "" if there is none."""
    for name in (*_LEAST_COUNTS, *_MOST_COUNTS):
        count = schema.get(name)
        if isinstance(count, float) and count.is_integer():
            schema[name] = count = int(count)
        if isinstance(count, int) and count > LARGEST_COUNT:
            if name in _LEAST_COUNTS:
                return name
            schema[name] = LARGEST_COUNT
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
