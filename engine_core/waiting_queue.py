"""Who runs next: sequences that own nothing, fairly between tenants, and within each in the policy's order."""

from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heapreplace

from .fair_share import FairShares, Tenant
from .ordered import insert, remove
from .request import Sequence, SequenceState


def goes_on(sequence: Sequence) -> bool:
    """What has begun goes on before others, as it is being read, unless it was preempted in their favour."""
    return not sequence.has_yielded and (sequence.state is SequenceState.PREEMPTED or bool(sequence.output))


class WaitingQueue:
    """Each tenant's by `Sequence.order`, so a preempted sequence returns to the place that its arrival gave it."""

    def __init__(self, shares: FairShares) -> None:
        self._shares = shares
        self._tenants: dict[Tenant, None] = {}  # with something that waits
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for tenant in self._tenants for sequence in tenant.waiting)

    @property
    def tenants(self) -> Collection[Tenant]:
        """Those of whom something waits."""
        return self._tenants.keys()

    def add(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        if not tenant.waiting:
            self._shares.begins_to_wait(tenant)
            self._tenants[tenant] = None
        insert(tenant.waiting, sequence)
        self._count += 1

    def first(self) -> Sequence:
        if len(self._tenants) == 1:
            return next(iter(self._tenants)).waiting[0]
        return min((tenant.waiting[0] for tenant in self._tenants), key=self._turn)

    def behind(self, first: Sequence) -> Iterator[Sequence]:
        """All but `first`, which `first()` has returned, in the order in which they come next."""
        rest = [
            iter(tenant.waiting[1:] if tenant is first.request.tenant else tenant.waiting) for tenant in self._tenants
        ]
        heads = [(self._turn(head), index, head) for index, each in enumerate(rest) if (head := next(each, None))]
        heapify(heads)
        while heads:
            _, index, head = heads[0]
            yield head
            if (after := next(rest[index], None)) is None:
                heappop(heads)
            else:
                heapreplace(heads, (self._turn(after), index, after))

    def take(self, first: Sequence) -> None:
        """Remove what `first` has returned."""
        del first.request.tenant.waiting[0]
        self._removed(first.request.tenant)

    def remove(self, sequence: Sequence) -> bool:
        """False when it was not here."""
        tenant = sequence.request.tenant
        if not remove(tenant.waiting, sequence):
            return False
        self._removed(tenant)
        return True

    def _turn(self, sequence: Sequence) -> tuple[int, int, tuple[int, int, int]]:
        """Sorts the first ones of several tenants."""
        return (
            sequence.order[0],
            -1 if goes_on(sequence) else self._shares.stage(sequence.request.tenant),
            sequence.order,
        )

    def _removed(self, tenant: Tenant) -> None:
        self._count -= 1
        if not tenant.waiting:
            del self._tenants[tenant]

    def check(self) -> None:
        for tenant in self._tenants:
            orders = [sequence.order for sequence in tenant.waiting]
            assert orders, "an empty queue counts as waiting"
            assert orders == sorted(set(orders)), "the queue is out of order, or holds a sequence twice"
            assert all(sequence.request.tenant is tenant for sequence in tenant.waiting), "in another tenant's queue"
        assert self._count == sum(len(tenant.waiting) for tenant in self._tenants), "the queue has miscounted"
