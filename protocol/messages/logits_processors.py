"""The plugins' logits processors that a request names; their code is in the worker, never in a request."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..errors import InvalidRequest

MAX_LOGITS_PROCESSORS = 16
MAX_ARGUMENTS = 64
MAX_CHARS = 1024

LARGEST_INT, LARGEST_FLOAT = 2**63 - 1, 1e300

_Int = Annotated[int, Meta(ge=-LARGEST_INT, le=LARGEST_INT)]
_Float = Annotated[float, Meta(ge=-LARGEST_FLOAT, le=LARGEST_FLOAT)]
_Value = bool | _Int | _Float | Annotated[str, Meta(max_length=MAX_CHARS)]
_Name = Annotated[str, Meta(max_length=MAX_CHARS)]


class LogitsProcessorParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One logits processor and its arguments. Raises InvalidRequest for values that the message cannot carry."""

    name: _Name
    args: Annotated[dict[_Name, _Value], Meta(max_length=MAX_ARGUMENTS)] = {}

    def __post_init__(self) -> None:
        field, args = "logits_processors", self.args
        if not isinstance(self.name, str) or not 0 < len(self.name) <= MAX_CHARS:
            raise InvalidRequest(f"{field} names {self.name!r:.100}; a name has 1 to {MAX_CHARS} characters", field)
        if not isinstance(args, dict) or len(args) > MAX_ARGUMENTS:
            raise InvalidRequest(f"{field}: the args of {self.name:.100} must be up to {MAX_ARGUMENTS} names", field)
        for name, value in args.items():
            if not isinstance(name, str) or not (isinstance(value, bool | str) or _is_bounded(value)):
                raise InvalidRequest(
                    f"{field}: argument {name!r:.100} of {self.name:.100} is {value!r:.100}; it must be a boolean, a "
                    f"string, or a number within ±{LARGEST_FLOAT:g}, a whole one within ±{LARGEST_INT}",
                    field,
                )
            if max(len(name), len(value) if isinstance(value, str) else 0) > MAX_CHARS:
                raise InvalidRequest(
                    f"{field}: a name or string of {self.name:.100} exceeds {MAX_CHARS} characters", field
                )


def _is_bounded(value: Any) -> bool:
    largest = LARGEST_INT if isinstance(value, int) else LARGEST_FLOAT
    return isinstance(value, int | float) and -largest <= value <= largest


def as_processors(value: Any) -> tuple[LogitsProcessorParams, ...]:
    """Decode a list of names, or of names with arguments. Raises InvalidRequest."""
    field = "logits_processors"
    if not isinstance(value, list | tuple) or len(value) > MAX_LOGITS_PROCESSORS:
        raise InvalidRequest(f"{field} is {value!r:.100}; it must be a list of up to {MAX_LOGITS_PROCESSORS}", field)
    found = tuple(LogitsProcessorParams(each) if isinstance(each, str) else each for each in value)
    for each in found:
        if not isinstance(each, LogitsProcessorParams):
            raise InvalidRequest(f"{field} has {each!r:.100}, which is not a name", field)
    return found
