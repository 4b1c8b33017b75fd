"""One LoRA adapter that requests have named: its state, its place in the workers, and the sequences that need it."""

from dataclasses import dataclass, field
from enum import Enum, auto

from paged_serve.protocol.messages.loading.adapters import Adapter
from paged_serve.protocol.state_machine import fire

from ..requests.request import Sequence


class AdapterState(Enum):
    ABSENT = auto()  # has no place
    LOADING = auto()  # its place was chosen and LoadAdapter sent; not all ranks have answered
    LOADED = auto()


class AdapterEvent(Enum):
    LOAD = auto()
    SUCCEED = auto()  # all ranks have loaded it
    FAIL = auto()  # all ranks have answered, one of them with an error
    EVICT = auto()
    WORKERS_LOST = auto()


TRANSITIONS = {
    (AdapterState.ABSENT, AdapterEvent.LOAD): AdapterState.LOADING,
    (AdapterState.LOADING, AdapterEvent.SUCCEED): AdapterState.LOADED,
    (AdapterState.LOADING, AdapterEvent.FAIL): AdapterState.ABSENT,
    (AdapterState.LOADED, AdapterEvent.EVICT): AdapterState.ABSENT,
    (AdapterState.ABSENT, AdapterEvent.WORKERS_LOST): AdapterState.ABSENT,
    (AdapterState.LOADING, AdapterEvent.WORKERS_LOST): AdapterState.ABSENT,
    (AdapterState.LOADED, AdapterEvent.WORKERS_LOST): AdapterState.ABSENT,
}


@dataclass(slots=True, eq=False)
class AdapterUse:
    """`adapter` is that of the first request; others may give the same digest another name."""

    adapter: Adapter
    state: AdapterState = AdapterState.ABSENT
    place: int = 0
    users: set[Sequence] = field(default_factory=set)  # they are queued, run, or were preempted: they keep the place
    held: list[Sequence] = field(default_factory=list)  # by order; they wait for the place, outside the queue
    used: int = 0  # when a user last came or left, counted in such events
    opened: int = 0  # when it was last loaded or reopened, counted likewise
    is_closing: bool = False  # another adapter is next: new sequences are held, and the users run to their end
    returning: set[Sequence] = field(default_factory=set)  # its users when it was closing and the workers were lost
    is_candidate: bool = False  # workers died while they loaded it
    left_step: int | None = None  # a step not before the last one with a row of it; only while it has no user
    answered: set[int] = field(default_factory=set)  # ranks
    error: str = ""  # of the first rank that refused it

    @property
    def is_idle(self) -> bool:
        """Whether it keeps a place that no sequence needs."""
        return self.state is AdapterState.LOADED and not self.users

    @property
    def has_turn(self) -> bool:
        """Whether its place serves sequences, or will once loaded; not if only new ones wait for its next turn."""
        return bool(self.users or (self.held and self.state is AdapterState.LOADING))

    def fire(self, event: AdapterEvent) -> None:
        """Raises IllegalTransition, and changes nothing, when `event` cannot happen now."""
        self.state = fire(TRANSITIONS, self.state, event, f"adapter {self.adapter.name!r}")
        if self.state is AdapterState.ABSENT:
            self.place, self.is_closing, self.left_step = 0, False, None
