"""An IO processor: pairs of words as data, and how far apart they are as the answer."""

from collections.abc import Sequence
from typing import Any


class Distances:
    task = "embed"

    def __init__(self, model_name: str):
        self._model_name = model_name

    def prompts(self, data: Any) -> list[str | list[int]]:
        if not isinstance(data, dict) or not isinstance(data.get("pairs"), list):
            raise ValueError("pairs is missing: a list of pairs of words")
        return [word for pair in data["pairs"] for word in pair]

    def output(self, data: Any, vectors: Sequence["memoryview[float]"]) -> Any:
        rows = [vector.tolist()[0] for vector in vectors]
        distances = [
            sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) for a, b in zip(rows[::2], rows[1::2], strict=True)
        ]
        return {"model": self._model_name, "distances": distances}
