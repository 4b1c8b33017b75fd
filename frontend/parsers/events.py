"""The events that generated text is parsed into, in order."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Content:
    """A piece of the answer."""

    text: str


@dataclass(slots=True, frozen=True)
class Reasoning:
    """A piece of what the model writes before its answer."""

    text: str


@dataclass(slots=True, frozen=True)
class CallStart:
    """Call `index` of an output begins, counted from 0."""

    index: int
    name: str
    id: str = ""  # "": the model gives none
    is_custom: bool = False  # a custom tool's, whose arguments are a text


@dataclass(slots=True, frozen=True)
class Arguments:
    """A piece of the JSON of call `index`. All pieces together are an object, if the model ended it.

    Of a custom tool's call it is a piece of the text that the object holds.
    """

    index: int
    text: str
    is_custom: bool = False


Event = Content | Reasoning | CallStart | Arguments
