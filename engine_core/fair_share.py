"""Tenants, and what each has had of the engine: the measure by which the next one is chosen.

Virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): a tenant's service is
the tokens computed for it, an output token counting as much as two of a prompt, divided by its weight. The tenant with
the least is served next. One that comes back from a pause starts at the least of those that wait, so a pause saves
nothing up. Output tokens are charged as they are planned, so nobody's length must be known, and nobody is stopped.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .request import Sequence

PROMPT_TOKEN_COST, OUTPUT_TOKEN_COST = 1.0, 2.0  # the paper's weights
RATE_OVER_S = 10.0  # what is older counts for little
MAX_IDLE_TENANTS = 1024  # remembered although nothing of theirs lives


@dataclass(slots=True)
class Rate:
    """Of something, over the last seconds."""

    _sum: float = 0.0
    _at_s: float = 0.0

    def add(self, amount: float, now: float) -> None:
        self._sum = self._sum * self._faded(now) + amount
        self._at_s = now

    def per_s(self, now: float) -> float:
        return self._sum * self._faded(now) / RATE_OVER_S

    def _faded(self, now: float) -> float:
        return math.exp(min(0.0, self._at_s - now) / RATE_OVER_S)


@dataclass(slots=True, eq=False)
class Tenant:
    """One of those that share the engine; its requests among themselves are served in the policy's order."""

    name: str
    weight: float = 1.0
    service: float = 0.0  # virtual time: cost of its tokens / weight
    num_live: int = 0  # sequences
    num_queued: int = 0  # of them, never ran
    num_decoding: int = 0  # of them, in the decode set
    queued_prompt_tokens: int = 0
    queued_output_tokens: int = 0  # at most
    arrivals: Rate = field(default_factory=Rate)  # cost of what was accepted
    waiting: "list[Sequence]" = field(default_factory=list)  # by order; the waiting queue's

    def charge_prompt(self, num_tokens: int) -> None:
        self.service += num_tokens * PROMPT_TOKEN_COST / self.weight

    def queue(self, sequence: "Sequence", sign: int) -> None:
        """Count a sequence that never ran in (+1) or out (-1)."""
        self.num_queued += sign
        self.queued_prompt_tokens += sign * sequence.num_tokens
        self.queued_output_tokens += sign * (sequence.token_limit - sequence.num_tokens)


class FairShares:
    """All tenants with something alive, and those that had more than others of late."""

    def __init__(self) -> None:
        self.tenants: dict[str, Tenant] = {}
        self.virtual_time = 0.0  # the service of whoever was chosen last
        self._decoding: dict[Tenant, None] = {}

    def of(self, name: str, weight: float) -> Tenant:
        """The tenant of this name; its newest request says what it weighs."""
        tenant = self.tenants.get(name)
        if tenant is None:
            if len(self.tenants) >= MAX_IDLE_TENANTS:
                self._forget_idle()
            tenant = self.tenants[name] = Tenant(name, weight, self.virtual_time)
        tenant.weight = weight
        return tenant

    def begins_to_wait(self, tenant: Tenant, others: Iterable[Tenant]) -> None:
        """Nothing of it waited until now. `others`: those that wait."""
        least = min((other.service for other in others), default=self.virtual_time)
        tenant.service = max(tenant.service, least)

    def join_decode_set(self, tenant: Tenant) -> None:
        tenant.num_decoding += 1
        self._decoding[tenant] = None

    def leave_decode_set(self, tenant: Tenant) -> None:
        tenant.num_decoding -= 1
        if not tenant.num_decoding:
            del self._decoding[tenant]

    def charge_decode_step(self) -> None:
        """A token for each sequence of the decode set was planned."""
        for tenant in self._decoding:
            tenant.service += tenant.num_decoding * OUTPUT_TOKEN_COST / tenant.weight

    def workers_lost(self) -> None:
        """Nothing decodes any more."""
        for tenant in self._decoding:
            tenant.num_decoding = 0
        self._decoding.clear()

    def _forget_idle(self) -> None:
        """Those that had least lose nothing by it: whoever comes back starts at the virtual time at least."""
        idle = sorted((tenant for tenant in self.tenants.values() if not tenant.num_live), key=lambda t: t.service)
        for tenant in idle[: max(1, len(idle) // 2)]:
            del self.tenants[tenant.name]

    def check(self) -> None:
        for tenant in self.tenants.values():
            assert (tenant in self._decoding) == (tenant.num_decoding > 0), f"tenant {tenant.name!r} decodes unseen"
            assert min(tenant.num_queued, tenant.num_decoding, tenant.queued_output_tokens) >= 0, "negative counts"
