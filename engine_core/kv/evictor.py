"""Free blocks whose contents can still be found, and the order in which they are evicted.

The tenant with the most blocks, in use and cached, loses its least recently used cached block. A tenant that floods
the cache therefore evicts its own prefixes and not those of others: each tenant keeps up to an equal share for as long
as it keeps using it.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence

KEPT_FOR_TURNOVERS = 8  # turnovers of the whole pool; blocks of a tenant that is idle for longer are evicted first


class Evictor:
    """Cached blocks by tenant, each tenant's in the order in which they became free."""

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
        """Count one more block for each entry of `tenants`."""
        if tenants and tenants.count(tenants[0]) == len(tenants):
            self.count(tenants[0], len(tenants))
            return
        for tenant, count in Counter(tenants).items():
            self.count(tenant, count)

    def count(self, tenant: str, change: int) -> None:
        """Add `change`, possibly negative, to the tenant's number of blocks."""
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
        """Remove blocks that are in use again, or whose contents are invalid."""
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
        """Remove and return `count` blocks; at least that many are cached."""
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
