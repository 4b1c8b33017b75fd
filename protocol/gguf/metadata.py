"""Typed access to the metadata of a GGUF file."""

import math
import struct
from pathlib import Path

from ..errors import ConfigError
from .cursor import Scalar, Value


class Metadata:
    """Metadata by key. The getters raise ConfigError, naming file, key and value, for a value of another type."""

    def __init__(self, path: Path, values: dict[str, Value]):
        self.path = path
        self.values = values

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def whole(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._unsuitable(key, value, "a whole number")
        return value

    def of_layer(self, key: str, layer: int, default: int) -> int:
        """The whole number of a layer, from a list, or the one of all layers."""
        value = self._get(key, default)
        if not isinstance(value, list):
            return self.whole(key, default)
        found = value[layer] if layer < len(value) else None
        if isinstance(found, bool) or not isinstance(found, int):
            raise self._unsuitable(key, value, f"a list with a whole number for layer {layer}")
        return int(found)

    def number(self, key: str, default: float | None = None) -> float:
        """A float32 comes back as the shortest decimal number that rounds to it: 1e-05, not 9.99999974e-06."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._unsuitable(key, value, "a finite number")
        return shortest(float(value))

    def truth(self, key: str, default: bool | None = None) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._unsuitable(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._unsuitable(key, value, "a string")
        return value

    def texts(self, key: str) -> list[str]:
        value = self._items(key)
        if not all(isinstance(each, str) for each in value):
            raise self._unsuitable(key, value, "a list of strings")
        return [str(each) for each in value]

    def numbers(self, key: str) -> list[float]:
        value = self._items(key)
        if any(isinstance(each, str) for each in value):
            raise self._unsuitable(key, value, "a list of numbers")
        return [float(each) for each in value]

    def refused(self, problem: str) -> ConfigError:
        return ConfigError(f"{self.path} cannot be served: {problem}")

    def _items(self, key: str) -> list[Scalar]:
        value = self._get(key, None)
        if not isinstance(value, list):
            raise self._unsuitable(key, value, "a list")
        return value

    def _get(self, key: str, default: Value | None) -> Value:
        value = self.values.get(key, default)
        if value is None:
            raise self.refused(f"its metadata has no {key}")
        return value

    def _unsuitable(self, key: str, value: Value, wanted: str) -> ConfigError:
        shown = repr(value)
        return self.refused(f"{key}={shown[:60]}{'…' if len(shown) > 60 else ''} must be {wanted}")


def shortest(value: float) -> float:
    """The decimal number with the fewest digits that is the same float32 as the finite `value`; else `value`."""
    wanted = _float32(value)
    candidates = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return next((short for short in candidates if wanted is not None and _float32(short) == wanted), value)


def _float32(value: float) -> bytes | None:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return None
