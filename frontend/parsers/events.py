"""The events that generated text is parsed into, in order."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Content:
    """A piece of the answer."""

    text: str


@dataclass(slots=True, frozen=True)
class Reasoning:
    """A piece of the reasoning before the answer."""

    text: str


@dataclass(slots=True, frozen=True)
class CallStart:
    """The beginning of call `index`, counted from 0."""

    index: int
    name: str
    id: str = ""  # "" if the model writes none
    is_custom: bool = False  # whether it calls a custom tool, whose input is a text


@dataclass(slots=True, frozen=True)
class Arguments:
    """A piece of the JSON arguments of call `index`. Joined, they are an object, unless the output was cut off.

    For a custom tool it is a piece of its input text.
    """

    index: int
    text: str
    is_custom: bool = False


Event = Content | Reasoning | CallStart | Arguments
