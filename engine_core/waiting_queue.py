"""Who runs next: sequences that own nothing, fairly between tenants, and within each in the policy's order."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from .fair_share import FairShares, Tenant
from .request import Sequence, SequenceState


def _order(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.order


def has_begun(sequence: Sequence) -> bool:
    return sequence.state is SequenceState.PREEMPTED or bool(sequence.output)


def _turn(sequence: Sequence) -> tuple[int, float, tuple[int, int, int]]:
    """Sorts the first ones of several tenants. Somebody reads what has begun already, so it goes on before others."""
    service = -1.0 if has_begun(sequence) else sequence.request.tenant.service
    return sequence.order[0], service, sequence.order


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

    def add(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        if not tenant.waiting:
            self._shares.begins_to_wait(tenant, self._tenants)
            self._tenants[tenant] = None
        insort(tenant.waiting, sequence, key=_order)
        self._count += 1

    def first(self) -> Sequence:
        if len(self._tenants) == 1:
            return next(iter(self._tenants)).waiting[0]
        return min((tenant.waiting[0] for tenant in self._tenants), key=_turn)

    def take(self, first: Sequence) -> None:
        """Remove what `first` has returned."""
        tenant = first.request.tenant
        if not has_begun(first):
            self._shares.virtual_time = max(self._shares.virtual_time, tenant.service)
        self._remove(tenant, 0)

    def remove(self, sequence: Sequence) -> bool:
        """False when it was not here."""
        tenant = sequence.request.tenant
        index = bisect_left(tenant.waiting, sequence.order, key=_order)
        if index == len(tenant.waiting) or tenant.waiting[index] is not sequence:
            return False
        self._remove(tenant, index)
        return True

    def _remove(self, tenant: Tenant, index: int) -> None:
        del tenant.waiting[index]
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
