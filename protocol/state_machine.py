"""Table-driven state machines: one table, one `fire`; an illegal event raises and changes nothing."""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)


class IllegalTransition(AssertionError):
    """Our own invariant is broken: an event arrived in a state that has no row for it."""


def fire(table: Mapping[tuple[State, Event], State], state: State, event: Event, subject: str) -> State:
    """The state after `event`; `subject` names the owner in the error."""
    try:
        return table[state, event]
    except KeyError:
        raise IllegalTransition(f"{subject}: {event.name} in state {state.name}") from None
