"""The scheduler as admission sees it: the waiting and running sequences and their tenants."""

from collections.abc import Iterable, Mapping, Sized
from collections.abc import Sequence as Items
from typing import Protocol

from ..requests.request import Sequence
from ..requests.tenant import Tenant


class Shares(Protocol):
    """How much service each tenant has received."""

    @property
    def tenants(self) -> Mapping[str, Tenant]: ...
    def of(self, name: str, weight: float) -> Tenant:
        """The tenant of this name; its newest request sets its weight."""
        ...

    @property
    def virtual_time(self) -> float: ...
    def ordering_service(self, tenant: Tenant) -> float:
        """The service by which the tenant is ordered: the lowest goes next."""
        ...


class PlannedStep(Protocol):
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_generating(self) -> int:
        """Rows that decode or verify."""
        ...


class Backlog(Protocol):
    @property
    def shares(self) -> Shares: ...
    @property
    def step(self) -> int:
        """The number of the last planned step."""
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
    """Runs each sequence that may have killed a worker in steps of its own."""

    is_closed: bool  # no other sequence is scheduled

    def isolate(self, goals: dict[Sequence, int]) -> None: ...
    def first(self) -> Sequence | None: ...
    def end_isolation(self) -> None: ...
