"""What admission asks of a scheduler: what waits, what runs, and whose it is."""

from collections.abc import Iterable, Mapping, Sized
from collections.abc import Sequence as Items
from typing import Protocol

from ..requests.request import Sequence
from ..requests.tenant import Tenant


class Shares(Protocol):
    """What each tenant has had of the engine."""

    @property
    def tenants(self) -> Mapping[str, Tenant]: ...
    def of(self, name: str, weight: float) -> Tenant:
        """The tenant of this name; its newest request sets its weight."""
        ...

    @property
    def virtual_time(self) -> float: ...
    def served_as_of(self, tenant: Tenant) -> float:
        """The service at which its turn comes."""
        ...


class PlannedStep(Protocol):
    @property
    def num_tokens(self) -> int: ...
    @property
    def decode(self) -> Sized: ...


class Backlog(Protocol):
    @property
    def shares(self) -> Shares: ...
    @property
    def step(self) -> int:
        """The last one planned."""
        ...

    @property
    def max_num_rows(self) -> int: ...
    @property
    def free_rows(self) -> Sized: ...
    @property
    def num_live(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def num_queued(self) -> int:
        """Sequences that never ran."""
        ...

    @property
    def num_queued_tokens(self) -> int: ...
    @property
    def running(self) -> Items[Sequence]: ...
    @property
    def prefilling(self) -> Items[Sequence]: ...
    @property
    def in_flight(self) -> Iterable[PlannedStep]: ...


class Isolation(Protocol):
    """Lets sequences that may kill workers run alone."""

    is_closed: bool  # nothing else is admitted

    def isolate(self, goals: dict[Sequence, int]) -> None: ...
    def first(self) -> Sequence | None: ...
    def end_isolation(self) -> None: ...
