"""What a format of tool calls or reasoning is. The formats of models are in `families/`."""

from collections.abc import Mapping
from dataclasses import dataclass

from .call_forms import CallForm as CallForm  # for plugins, too
from .channel_forms import ChannelForm
from .readers.states import CONTENT, State


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """`states` include a content state, from which the others are reached. Outputs begin in state `start`.

    A format with a ChannelForm parses reasoning, too, and is therefore needed even without tools.
    """

    name: str
    states: Mapping[str, State]
    form: CallForm | ChannelForm
    start: str = CONTENT
    states_without_tools: Mapping[str, State] | None = None  # of a format with channels


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning is written between two tags at the beginning of an output."""

    name: str
    begin: str
    end: str
    label: str = ""  # written behind `begin`; not a part of the reasoning
    around_answer: tuple[str, ...] = ()  # tags that are not a part of the answer
