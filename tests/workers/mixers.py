"""Models with other operations or another attention backend than those they were built with."""

from dataclasses import replace
from typing import Any


def with_parts(model: Any, **parts: Any) -> Any:
    """`model` with other `ops` or `attention`, which its layers' attention uses too."""
    named = {"backend" if name == "attention" else name: part for name, part in parts.items()}
    layers = [replace(layer, mixer=replace(layer.mixer, **named)) for layer in model.layers]
    return replace(model, layers=layers, **parts)
