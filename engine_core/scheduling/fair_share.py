"""Counts the service that each tenant receives, which decides which one is scheduled next and which is preempted.

Service is counted as in Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024: the tokens computed for
a tenant divided by its weight, where an output token counts as much as two prompt tokens. The virtual time is the
service that each tenant would have received if all tenants with live sequences had always had their shares
(generalized processor sharing, Parekh and Gallager 1993). Service beyond it is the tenant's lead; an idle tenant
accumulates no credit. Leads are compared in thirds of a batch, the cost of a full set of rows from first token to last;
with equal leads, the first arrival is served first. From two thirds on, a tenant is ahead, and its sequences are
preempted for other tenants. Outputs are charged as they are planned, so no length needs to be known.
"""

import math
from collections.abc import Iterable

from ..requests.tenant import OUTPUT_TOKEN_COST, PROMPT_TOKEN_COST, Rate, Tenant

STAGES_OF_BATCH = 3  # resolution of a lead, in parts of a batch
AHEAD_STAGE = 2
MAX_LEAD_BATCHES = 2.0  # a lead is cut to this: beyond it no other tenant was waiting
LEAD_FADES_BATCHES = 6.0  # service in which a lead decays to 1/e: leads of equal tenants differ by chance
FIRST_COST, KEEP_COST = 100.0, 0.95  # of a sequence: until one has ended; one counts half after 14 more
ARRIVALS_OVER_BATCHES = 2.0  # time constant of the arrival rates, in sets of all rows returned
MAX_IDLE_TENANTS = 1024  # remembered without live sequences


class FairShares:
    """The tenants that have live requests, or a lead from recent requests."""

    def __init__(self, max_num_rows: int) -> None:
        self.tenants: dict[str, Tenant] = {}
        self.virtual_time = 0.0  # service
        self._max_num_rows = max_num_rows
        self._ended_cost, self._num_ended = 0.1 * FIRST_COST, 0.1  # of sequences, decaying averages
        self._live_weight = 0.0  # of tenants with live sequences
        self._decoding: dict[Tenant, None] = {}
        self._num_rows_returned = 0
        self._arrivals_over = ARRIVALS_OVER_BATCHES * max_num_rows
        self._sequence_arrivals = Rate(self._arrivals_over)  # of all tenants

    def of(self, name: str, weight: float) -> Tenant:
        """The tenant of this name; its newest request sets its weight."""
        tenant = self.tenants.get(name)
        if tenant is None:
            if len(self.tenants) >= MAX_IDLE_TENANTS:
                self._remove_idle()
            tenant = self.tenants[name] = Tenant(name, weight, self.virtual_time)
            tenant.sequence_arrivals = Rate(self._arrivals_over)
        if tenant.num_live:
            self._live_weight += weight - tenant.weight
        tenant.weight = weight
        return tenant

    def stage(self, tenant: Tenant) -> int:
        """The tenant's lead in thirds of a batch; 0: little or none."""
        return max(0, int((tenant.service - self.virtual_time) * STAGES_OF_BATCH / self._batch_cost))

    def ordering_service(self, tenant: Tenant) -> float:
        """The service by which the tenant is ordered; it is equal within a stage."""
        return self.virtual_time + self.stage(tenant) * self._batch_cost / STAGES_OF_BATCH

    def is_ahead(self, tenant: Tenant) -> bool:
        return self.stage(tenant) >= AHEAD_STAGE

    def tenants_ahead(self) -> set[Tenant]:
        """The tenants with live sequences that are ahead."""
        least = self.virtual_time + AHEAD_STAGE * self._batch_cost / STAGES_OF_BATCH
        return {tenant for tenant in self.tenants.values() if tenant.service >= least and tenant.num_live}

    def sequence_arrived(self, tenant: Tenant) -> None:
        """Record the arrival of a sequence of `tenant`."""
        if not tenant.num_live:
            self._live_weight += tenant.weight
        tenant.num_live += 1
        for arrivals in (tenant.sequence_arrivals, self._sequence_arrivals):
            arrivals.add(1.0, self._num_rows_returned)

    def row_returned(self) -> None:
        """Record that a sequence ended or was preempted: the clock by which arrivals age."""
        self._num_rows_returned += 1

    def arrivals_per_row(self, besides: Iterable[Tenant]) -> float:
        """Recent arrivals of sequences per returned row, of all tenants but `besides`."""
        clock = self._num_rows_returned
        own = sum(tenant.sequence_arrivals.value(clock) for tenant in besides)
        return max(0.0, self._sequence_arrivals.value(clock) - own)

    def sequence_ended(self, tenant: Tenant, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Record the end of a sequence of `tenant`."""
        tenant.num_live -= 1
        if not tenant.num_live:
            self._live_weight -= tenant.weight
        cost = num_prompt_tokens * PROMPT_TOKEN_COST + num_output_tokens * OUTPUT_TOKEN_COST
        self._ended_cost = KEEP_COST * self._ended_cost + cost
        self._num_ended = KEEP_COST * self._num_ended + 1

    def start_waiting(self, tenant: Tenant) -> None:
        """Record that `tenant`, which had no waiting sequence, now has one."""
        tenant.service = max(tenant.service, self.virtual_time)

    def join_decode_set(self, tenant: Tenant) -> None:
        tenant.num_decoding += 1
        self._decoding[tenant] = None

    def leave_decode_set(self, tenant: Tenant) -> None:
        tenant.num_decoding -= 1
        if not tenant.num_decoding:
            del self._decoding[tenant]

    def charge_prompt(self, tenant: Tenant, num_tokens: int) -> None:
        cost = num_tokens * PROMPT_TOKEN_COST
        self._serve(tenant, cost, self._pass_time(cost))

    def charge_decode_step(self) -> None:
        """Charge one planned token to each sequence of the decode set."""
        if not self._decoding:
            return
        kept = self._pass_time(OUTPUT_TOKEN_COST * sum(tenant.num_decoding for tenant in self._decoding))
        for tenant in self._decoding:
            self._serve(tenant, tenant.num_decoding * OUTPUT_TOKEN_COST, kept)

    def charge_output(self, tenant: Tenant, num_tokens: int) -> None:
        """Charge tokens that a verification has yielded."""
        cost = num_tokens * OUTPUT_TOKEN_COST
        self._serve(tenant, cost, self._pass_time(cost))

    def workers_lost(self) -> None:
        """Record that no sequence decodes any more."""
        for tenant in self._decoding:
            tenant.num_decoding = 0
        self._decoding.clear()

    def _pass_time(self, cost: float) -> float:
        """Advance the virtual time by `cost`, given to all tenants together; returns the share of a lead left."""
        passed = cost / self._live_weight
        self.virtual_time += passed
        return math.exp(-passed / (LEAD_FADES_BATCHES * self._batch_cost))

    def _serve(self, tenant: Tenant, cost: float, kept: float) -> None:
        lead = tenant.service + cost / tenant.weight - self.virtual_time
        tenant.service = self.virtual_time + min(MAX_LEAD_BATCHES * self._batch_cost, lead * kept)

    @property
    def _batch_cost(self) -> float:
        return self._max_num_rows * max(1.0, self._ended_cost / self._num_ended)

    def _remove_idle(self) -> None:
        """Remove the idle tenants with the least service, which has no effect on them: a tenant that returns starts at
        the virtual time or later."""
        idle = sorted((tenant for tenant in self.tenants.values() if not tenant.num_live), key=lambda t: t.service)
        for tenant in idle[: max(1, len(idle) // 2)]:
            del self.tenants[tenant.name]

    def check(self) -> None:
        live_weight = sum(tenant.weight for tenant in self.tenants.values() if tenant.num_live)
        assert math.isclose(self._live_weight, live_weight, abs_tol=1e-6), "the weight of the live tenants is wrong"
        for tenant in self.tenants.values():
            decodes = tenant.num_decoding > 0
            assert (tenant in self._decoding) == decodes, f"tenant {tenant.name!r}: wrong entry in _decoding"
            assert min(tenant.num_queued, tenant.num_decoding, tenant.queued_output_tokens) >= 0, "negative counts"
