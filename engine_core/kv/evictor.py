"""Free blocks whose contents can still be found, and which of them goes when the room is needed.

The tenant with most blocks, those it uses and those it has left, loses the least recently used of the latter. So
a tenant that floods the cache evicts its own prefixes and not those of others: each keeps up to an equal share for as
long as it comes back for it.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence

KEPT_FOR_TURNOVERS = 8  # of all blocks: what a tenant left longer ago is evicted first


class Evictor:
    """Blocks by tenant, each tenant's in the order in which they became free."""

    def __init__(self, num_blocks: int):
        self._by_tenant: dict[str, OrderedDict[int, None]] = {}
        self._tenant_of: dict[int, str] = {}
        self._max_age = KEPT_FOR_TURNOVERS * num_blocks
        self._num_evicted = 0
        self.num_owned_by: dict[str, int] = {}  # blocks in use and blocks left, by tenant
        self._used_at: dict[str, int] = {}  # `_num_evicted` when the tenant's blocks were last found or left

    def __len__(self) -> int:
        return len(self._tenant_of)

    def __contains__(self, block: object) -> bool:
        return block in self._tenant_of

    def __iter__(self) -> Iterator[int]:
        return iter(self._tenant_of)

    def count_each(self, tenants: Sequence[str]) -> None:
        """One more block for each of them."""
        if tenants and tenants.count(tenants[0]) == len(tenants):
            self.count(tenants[0], len(tenants))
            return
        for tenant, count in Counter(tenants).items():
            self.count(tenant, count)

    def count(self, tenant: str, change: int) -> None:
        """`change` more blocks are this tenant's, or fewer."""
        num_owned = self.num_owned_by.get(tenant, 0) + change
        if num_owned:
            self.num_owned_by[tenant] = num_owned
        else:
            del self.num_owned_by[tenant]

    def add(self, block: int, tenant: str) -> None:
        self._tenant_of[block] = tenant
        self._by_tenant.setdefault(tenant, OrderedDict())[block] = None
        self._used_at[tenant] = self._num_evicted

    def remove(self, blocks: Sequence[int]) -> None:
        """They are used again, or their contents are struck."""
        tenant_of, by_tenant, tenants = self._tenant_of, self._by_tenant, set()
        for block in blocks:
            tenant = tenant_of.pop(block)
            del by_tenant[tenant][block]
            tenants.add(tenant)
        for tenant in tenants:
            self._used_at[tenant] = self._num_evicted
            if not by_tenant[tenant]:
                self._drop(tenant)

    def evict(self, count: int) -> list[int]:
        """Take `count` blocks out, which are there."""
        if len(self._by_tenant) == 1:
            [(tenant, blocks)] = self._by_tenant.items()
            taken = [blocks.popitem(last=False)[0] for _ in range(count)]
            self.count(tenant, -count)
            if not blocks:
                self._drop(tenant)
        else:
            taken = self._evict_of_many(count)
        for block in taken:
            del self._tenant_of[block]
        self._num_evicted += count
        return taken

    def _evict_of_many(self, count: int) -> list[int]:
        oldest = self._num_evicted - self._max_age
        order = [(self._used_at[name] >= oldest, -self.num_owned_by[name], name) for name in self._by_tenant]
        heapq.heapify(order)
        taken = []
        for _ in range(count):
            is_fresh, size, tenant = order[0]
            blocks = self._by_tenant[tenant]
            taken.append(blocks.popitem(last=False)[0])
            self.count(tenant, -1)
            if blocks:
                heapq.heapreplace(order, (is_fresh, size + 1, tenant))
            else:
                heapq.heappop(order)
                self._drop(tenant)
        return taken

    def _drop(self, tenant: str) -> None:
        del self._by_tenant[tenant], self._used_at[tenant]
