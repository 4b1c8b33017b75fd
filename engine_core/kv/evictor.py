"""Free blocks whose contents can still be found, and the order in which they are evicted.

The tenant with the most blocks, in use and cached, loses its least recently used cached block. A tenant that floods
the cache therefore evicts its own prefixes and not those of others: each tenant keeps up to an equal share for as long
as it keeps using it. Of a tenant's blocks, partial ones are evicted first: every sequence leaves one, which serves only
what continues that very sequence, and a full block may be the prefix of many.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice

KEPT_FOR_TURNOVERS = 8  # turnovers of the whole pool; blocks of a tenant that is idle for longer are evicted first


class Evictor:
    """Cached blocks by tenant, each tenant's in the order in which they became free, partial ones before full ones."""

    def __init__(self, num_blocks: int):
        self._by_tenant: dict[str, OrderedDict[int, None]] = {}  # full blocks; has all tenants with cached blocks
        self._partial: dict[str, OrderedDict[int, None]] = {}  # by tenant, never empty
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

    def add(self, block: int, tenant: str, *, is_partial: bool = False) -> None:
        self._tenant_of[block] = tenant
        blocks = self._by_tenant.setdefault(tenant, OrderedDict())
        if is_partial:
            blocks = self._partial.setdefault(tenant, OrderedDict())
        blocks[block] = None
        self._used_at[tenant] = self._num_evicted

    def remove(self, blocks: Sequence[int]) -> None:
        """Remove blocks that are in use again, or whose contents are invalid."""
        tenant_of, by_tenant, tenants = self._tenant_of, self._by_tenant, set()
        for block in blocks:
            tenant = tenant_of.pop(block)
            if block in (full := by_tenant[tenant]):
                del full[block]
            else:
                self._remove_partial(block, tenant)
            tenants.add(tenant)
        for tenant in tenants:
            self._used_at[tenant] = self._num_evicted
            self._drop_if_empty(tenant)

    def evict(self, count: int) -> list[int]:
        """Remove and return `count` blocks; at least that many are cached."""
        if len(self._by_tenant) == 1:
            [(tenant, blocks)] = self._by_tenant.items()
            taken = self._evict_partial(tenant, count) if self._partial else []
            taken += [blocks.popitem(last=False)[0] for _ in range(count - len(taken))]
            self.count(tenant, -count)
            self._drop_if_empty(tenant)
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
            taken += self._evict_partial(tenant, 1) or [self._by_tenant[tenant].popitem(last=False)[0]]
            self.count(tenant, -1)
            if self._drop_if_empty(tenant):
                heapq.heappop(order)
            else:
                heapq.heapreplace(order, (is_fresh, size + 1, tenant))
        return taken

    def _evict_partial(self, tenant: str, count: int) -> list[int]:
        """Remove up to `count` partial blocks."""
        taken = list(islice(self._partial.get(tenant, ()), count))
        for block in taken:
            self._remove_partial(block, tenant)
        return taken

    def _remove_partial(self, block: int, tenant: str) -> None:
        del self._partial[tenant][block]
        if not self._partial[tenant]:
            del self._partial[tenant]

    def _drop_if_empty(self, tenant: str) -> bool:
        """Forget a tenant that has no cached block; True if it has none."""
        if self._by_tenant[tenant] or tenant in self._partial:
            return False
        del self._by_tenant[tenant], self._used_at[tenant]
        return True
