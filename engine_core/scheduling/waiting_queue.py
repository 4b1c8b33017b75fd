"""The waiting queue: fair between tenants, and ordered by requests/order.py within each.

Sequences of a paused client are kept outside the queue until the client acknowledges its outputs, those whose LoRA
adapter is not loaded until it is.
"""

from collections.abc import Collection, Iterable, Iterator
from heapq import heapify, heappop, heapreplace

from paged_serve.protocol.messages.loading.adapters import LoadAdapter

from ..adapters.adapter_use import AdapterUse
from ..adapters.places import AdapterPlaces
from ..requests.order import insert, order_of, remove
from ..requests.request import Sequence, SequenceState
from ..requests.tenant import Tenant
from .fair_share import FairShares


def has_precedence(sequence: Sequence) -> bool:
    """Whether `sequence` precedes others because its client already reads it; not if it was preempted for them."""
    return not sequence.has_yielded and (sequence.state is SequenceState.PREEMPTED or bool(sequence.output))


class WaitingQueue:
    """Waiting sequences, sorted per tenant by `Sequence.order`: a preempted one returns to its place by arrival."""

    def __init__(self, shares: FairShares, max_loras: int = 0) -> None:
        self._shares = shares
        self.adapters = AdapterPlaces(max_loras)
        self._waiting: dict[Tenant, list[Sequence]] = {}  # by order; no list is empty
        self._count = 0
        self.paused: dict[bytes, list[Sequence]] = {}  # by client, by order; not counted as waiting

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for waiting in self._waiting.values() for sequence in waiting)

    @property
    def tenants(self) -> Collection[Tenant]:
        """Tenants with a waiting sequence."""
        return self._waiting.keys()

    def add(self, sequence: Sequence) -> None:
        if (paused := self.paused.get(sequence.request.client)) is not None:
            insert(paused, sequence)
            self.adapters.leave(sequence)
            return
        if not self.adapters.admit(sequence):
            return
        tenant = sequence.request.tenant
        waiting = self._waiting.get(tenant)
        if waiting is None:
            self._shares.start_waiting(tenant)
            waiting = self._waiting[tenant] = []
        insert(waiting, sequence)
        self._count += 1

    def first(self) -> Sequence:
        if len(self._waiting) == 1:
            return next(iter(self._waiting.values()))[0]
        return min((waiting[0] for waiting in self._waiting.values()), key=self._sort_key)

    def behind(self, first: Sequence) -> Iterator[Sequence]:
        """All sequences after `first`, the result of `first()`, in the order in which they are next."""
        rest = [
            iter(waiting[1:] if tenant is first.request.tenant else waiting)
            for tenant, waiting in self._waiting.items()
        ]
        heads = [(self._sort_key(head), index, head) for index, each in enumerate(rest) if (head := next(each, None))]
        heapify(heads)
        while heads:
            _, index, head = heads[0]
            yield head
            if (after := next(rest[index], None)) is None:
                heappop(heads)
            else:
                heapreplace(heads, (self._sort_key(after), index, after))

    def take(self, first: Sequence) -> None:
        """Remove the result of `first()`."""
        tenant = first.request.tenant
        waiting = self._waiting[tenant]
        del waiting[0]
        self._removed(tenant, waiting)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that waits, in the queue, outside it, or for its leader."""
        if (paused := self.paused.get(sequence.request.client)) is not None and remove(paused, sequence):
            return
        tenant = sequence.request.tenant
        waiting = self._waiting.get(tenant)
        if waiting is None or not remove(waiting, sequence):
            if not self.adapters.remove_held(sequence):
                sequence.request.followers.remove(sequence)
            return
        self._removed(tenant, waiting)

    def pause(self, client: bytes) -> None:
        """Keep the sequences of `client` out of the queue until `resume`."""
        own = [sequence for sequence in self if sequence.request.client == client]
        for sequence in own:
            self.remove(sequence)
            self.adapters.leave(sequence)
        self.paused[client] = sorted(own, key=order_of)

    def resume(self, client: bytes) -> None:
        for sequence in self.paused.pop(client, ()):
            self.add(sequence)

    def take_loads(
        self, candidate: Sequence | None, step: int, oldest: int | None, *, has_rows: bool
    ) -> list[LoadAdapter]:
        """The adapters to load now, for all ranks; usually none. Moves the sequences that this concerns.

        `candidate`: the only sequence that may run; `step`: the last one planned; `oldest`: the first one in flight.
        """
        if candidate is None:
            loads, reopened = self.adapters.take_loads(step, oldest)
        else:
            may_displace = oldest is None and not has_rows
            loads, reopened, displaced = self.adapters.take_load_for(candidate, may_displace=may_displace)
            self.hold(displaced)
        for use in reopened:
            self.release(use)
        return loads

    def hold(self, sequences: Iterable[Sequence]) -> None:
        """Take sequences out of the queue, because their adapters have lost their places."""
        for sequence in sequences:
            self.remove(sequence)
            self.add(sequence)

    def release(self, use: AdapterUse) -> None:
        """Let the sequences that wait for an adapter enter the queue: it is loaded."""
        held, use.held = use.held, []
        for sequence in held:
            self.add(sequence)

    def workers_lost(self, *, from_outside: bool) -> list[AdapterUse]:
        """Hold all sequences with adapters; returns the adapters that workers could not load without a crash."""
        refused = self.adapters.workers_lost(from_outside=from_outside)
        self.hold([sequence for sequence in self if sequence.request.adapter is not None])
        return refused

    def _sort_key(self, sequence: Sequence) -> tuple[int, int, tuple[int, int, int]]:
        """The sort key among the first sequences of several tenants."""
        return (
            sequence.order[0],
            -1 if has_precedence(sequence) else self._shares.stage(sequence.request.tenant),
            sequence.order,
        )

    def _removed(self, tenant: Tenant, waiting: list[Sequence]) -> None:
        self._count -= 1
        if not waiting:
            del self._waiting[tenant]

    def check(self) -> None:
        for tenant, waiting in self._waiting.items():
            orders = [sequence.order for sequence in waiting]
            assert orders, "a tenant without waiting sequences has a queue"
            assert orders == sorted(set(orders)), "the queue is out of order, or holds a sequence twice"
            assert all(sequence.request.tenant is tenant for sequence in waiting), "in another tenant's queue"
        assert self._count == sum(map(len, self._waiting.values())), "the length of the queue is wrong"
