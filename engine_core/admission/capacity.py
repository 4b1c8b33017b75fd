"""Decides whether the queue has room for one more request, and predicts when it will.

A full queue is full only for the tenants that fill it: each tenant may always use its share of the limits, so all
tenants together exceed them at most twofold. A tenant that is alone in the queue may use all of it.
"""

from heapq import nsmallest

from paged_serve.protocol.block_hash import TOKEN_BYTES
from paged_serve.protocol.errors import Overloaded
from paged_serve.protocol.messages.config import SchedulerConfig
from paged_serve.protocol.messages.engine_core import EngineCoreRequest
from paged_serve.protocol.messages.stats import MAX_TENANT_STATS, TenantStats

from ..requests.tenant import Tenant
from .backlog import Backlog
from .forecast import Forecast

LONGEST_WAIT_S, SHORTEST_WAIT_S = 3600.0, 0.1  # as reported to a client
UNKNOWN_WAIT_S = 1.0  # before the first step
# A queue that may drain sooner is not reported as full: the report is some 100 ms old on arrival.
MIN_FULL_QUEUE_S = 0.5


class Capacity:
    """Raises Overloaded, with a predicted time to retry, for requests that exceed the queue's limits."""

    def __init__(self, backlog: Backlog, limits: SchedulerConfig, forecast: Forecast):
        self._backlog = backlog
        self._limits = limits
        self._forecast = forecast

    def check(self, tenant: Tenant, message: EngineCoreRequest) -> None:
        n, prompt_tokens = message.sampling_params.n, len(message.prompt_token_ids) // TOKEN_BYTES
        if self._backlog.num_queued:
            new_rows = n - len(self._backlog.free_rows)
            self._check_limit(tenant, "sequences", self._backlog.num_queued + new_rows, tenant.num_queued + new_rows)
            new = n * prompt_tokens
            self._check_limit(
                tenant, "tokens", self._backlog.num_queued_tokens + new, tenant.queued_prompt_tokens + new
            )
        if message.ttl_s:
            self._check_patience(tenant, message.ttl_s, prompt_tokens)

    def waits(self) -> tuple[float, tuple[TenantStats, ...]]:
        """Seconds to the first token for a tenant with an empty queue, and the waits of the tenants with the longest.

        The latter let a frontend reject requests without asking the core.
        """
        shares = self._backlog.shares
        queued = [tenant for tenant in shares.tenants.values() if tenant.num_queued]
        weight = sum(tenant.weight for tenant in queued)
        longest = nsmallest(MAX_TENANT_STATS, queued, key=lambda tenant: (-tenant.num_queued, tenant.name))
        newcomer = Tenant("", service=shares.virtual_time)
        newcomer_s, *waits = [min(LONGEST_WAIT_S, s) for s in self._forecast.queue_times([newcomer, *longest])]
        return newcomer_s, tuple(
            TenantStats(tenant.name, tenant.num_queued, wait_s, self._is_full(tenant, weight, wait_s))
            for tenant, wait_s in zip(longest, waits, strict=True)
        )

    def _is_full(self, tenant: Tenant, weight: float, wait_s: float) -> bool:
        """Whether even a small request of this tenant would be rejected for some time. `weight`: of all that wait."""
        limit = self._limits.max_num_queued_requests
        is_over = tenant.num_queued + 1 > limit * tenant.weight / weight
        return is_over and self._backlog.num_queued + 1 > limit and wait_s > MIN_FULL_QUEUE_S

    def _check_limit(self, tenant: Tenant, what: str, total: int, own: int) -> None:
        limits = self._limits
        limit = limits.max_num_queued_requests if what == "sequences" else limits.max_num_queued_tokens
        if total <= limit:
            return
        share = self._share(tenant, limit)
        if own <= share or not tenant.num_queued:
            return
        whose = "" if share == limit else f" of this API key, its current share of {limit}"
        raise Overloaded(
            f"with this request {own} {what} would wait; at most {share:.0f} may{whose}. Retry later, or raise "
            f"--max-num-queued-{'requests' if what == 'sequences' else 'tokens'}",
            self._retry_after_s(self._forecast.queue_s(tenant)),
        )

    def _share(self, tenant: Tenant, limit: int) -> float:
        others = sum(
            other.weight for other in self._backlog.shares.tenants.values() if other.num_queued and other is not tenant
        )
        return limit * tenant.weight / (tenant.weight + others)

    def _check_patience(self, tenant: Tenant, ttl_s: float, prompt_tokens: int) -> None:
        if not self._forecast.queue_s(tenant):
            return
        wait_s = self._forecast.first_token_s(tenant, prompt_tokens)
        if wait_s > ttl_s:
            raise Overloaded(
                f"timeout={ttl_s:.3g}: the first token is expected in about {wait_s:.3g} s, as "
                f"{self._backlog.num_waiting} sequences are waiting. Allow more time, or retry later",
                self._retry_after_s(wait_s - ttl_s),
            )

    def _retry_after_s(self, seconds: float) -> float:
        if not self._forecast.has_data:
            return UNKNOWN_WAIT_S
        return min(LONGEST_WAIT_S, max(SHORTEST_WAIT_S, seconds))
