"""Limits the memory that a frontend holds for its clients, whatever they send, request, or leave unread.

The memory of a request (decoded body, prompt, answer) is a lease, which is refused when there is no room. Memory that
waits for a client (incoming bodies, stored answers, outputs for slow readers) belongs to a pool. A pool above its
guaranteed share ends its largest entries when room is short.
"""

from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from paged_serve.protocol.errors import InvalidRequest, Overloaded

DEFAULT_MAX_BYTES = 256 << 20
POOL_SHARE = 1 / 8  # of the budget, which no lease can take from a pool
LEASES_SHARE = 1 / 2  # of the budget, for leases together
LARGEST_SHARE = 1 / 4  # of the budget, for one lease
TENANT_SHARE = 3 / 4  # of the leases' share, for one of several tenants
SHED_SHARE = 1 / 32  # of the budget, the least to shed at a time: finding the largest entries is slow
RETRY_AFTER_S = 1.0


class Pool(Protocol):
    @property
    def num_bytes(self) -> int: ...
    def shed(self, num_bytes: int) -> None:
        """End entries, the largest first, until `num_bytes` are free or nothing is left."""


@dataclass(slots=True, eq=False)
class Lease:
    """The memory of one request, a context manager; leave or `close` it to free the memory."""

    budget: "BufferBudget"
    tenant: str = ""
    num_bytes: int = 0

    def resize(self, num_bytes: int, what: str = "This request") -> None:
        """Set the size, or change nothing and raise: Overloaded without room, InvalidRequest if there never is any."""
        self.budget._resize(self, num_bytes, what)

    def grow(self, num_bytes: int, what: str = "This request") -> None:
        self.budget._resize(self, self.num_bytes + num_bytes, what)

    def check(self, num_bytes: int, what: str = "This request") -> None:
        """Raises InvalidRequest when `num_bytes` exceeds the limit of one lease."""
        self.budget.check_largest(num_bytes, what)

    def close(self) -> None:
        self.budget._resize(self, 0, "")

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


@dataclass(slots=True, eq=False)
class BufferBudget:
    """The budget of one frontend process, used only on its event loop. `has_tenants`: no tenant may take it all."""

    max_bytes: int
    has_tenants: bool = False
    num_leased: int = 0
    pools: list[Pool] = field(default_factory=list)
    outputs: Pool | None = None  # this pool grows without asking, so its guaranteed share stays free
    _by_tenant: dict[str, int] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """The bytes in use, at most `max_bytes`."""
        return self.num_leased + sum(pool.num_bytes for pool in self._all_pools())

    def lease(self, tenant: str = "") -> Lease:
        return Lease(self, tenant)

    def has_room(self, num_bytes: int = 0) -> bool:
        """Whether `num_bytes` more fit, once pools above their guaranteed share have shrunk."""
        excess = self._excess(num_bytes)
        for pool in self._all_pools() if excess > 0 else ():
            surplus = pool.num_bytes - self._guaranteed
            if surplus > 0 and excess > 0:
                pool.shed(min(surplus, max(excess, int(self.max_bytes * SHED_SHARE))))
                excess = self._excess(num_bytes)
        return excess <= 0

    def outputs_arrived(self) -> None:
        """Make room after outputs arrived: their memory is in use already, so entries of some pool must end."""
        if self.outputs is not None and self.outputs.num_bytes > self._guaranteed:
            self.has_room()

    @property
    def _guaranteed(self) -> int:
        return int(self.max_bytes * POOL_SHARE)

    def _all_pools(self) -> list[Pool]:
        return self.pools if self.outputs is None else [*self.pools, self.outputs]

    def _excess(self, num_bytes: int) -> int:
        reserved = 0 if self.outputs is None else max(0, self._guaranteed - self.outputs.num_bytes)
        return self.num_bytes + reserved + num_bytes - self.max_bytes

    def _resize(self, lease: Lease, num_bytes: int, what: str) -> None:
        growth = num_bytes - lease.num_bytes
        if growth > 0:
            self._check(lease, num_bytes, growth, what)
        lease.num_bytes = num_bytes
        self.num_leased += growth
        held = self._by_tenant.get(lease.tenant, 0) + growth
        if held:
            self._by_tenant[lease.tenant] = held
        else:
            self._by_tenant.pop(lease.tenant, None)

    def check_largest(self, num_bytes: int, what: str) -> None:
        largest = int(self.max_bytes * LARGEST_SHARE)
        if num_bytes > largest:
            raise InvalidRequest(
                f"{what} needs {num_bytes} bytes of the server's memory; one request may take {largest}, a quarter of "
                "--max-buffered-bytes. Ask for less at a time (fewer prompts, choices, tokens or logprobs), or for a "
                "stream"
            )

    def _check(self, lease: Lease, num_bytes: int, growth: int, what: str) -> None:
        self.check_largest(num_bytes, what)
        limit = int(self.max_bytes * LEASES_SHARE)
        own_limit = int(limit * TENANT_SHARE) if self.has_tenants else limit
        own = self._by_tenant.get(lease.tenant, 0)
        if self.num_leased + growth > limit or own + growth > own_limit or not self.has_room(growth):
            raise Overloaded(
                f"The requests in progress use all the memory that they may take (--max-buffered-bytes="
                f"{self.max_bytes}); retry in a moment.",
                RETRY_AFTER_S,
            )
