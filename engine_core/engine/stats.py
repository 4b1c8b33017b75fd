"""Counters of one epoch, and the snapshot that clients receive."""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

from paged_serve.protocol.messages.stats import MAX_ADAPTER_STATS, STEP_TOKENS, SchedulerStats, TenantStats

from ..requests.request import Sequence
from ..scheduling.scheduled_step import ScheduledStep
from ..scheduling.scheduler import Scheduler

STATS_INTERVAL_S = 0.1
Waits = tuple[float, tuple[TenantStats, ...]]


@dataclass(slots=True)
class StepCounters:
    """Counters that increase with each applied step."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0  # tokens
    prefix_cache_hits: int = 0  # tokens
    draft_tokens: int = 0
    accepted_tokens: int = 0
    num_drafts: int = 0  # verifications with drafts
    runs: list[int] = field(default_factory=list)  # verifications with drafts, by how many were accepted
    step_tokens: int = 0
    steps_by_tokens: list[int] = field(default_factory=lambda: [0] * (len(STEP_TOKENS) + 1))
    last_step_s: float = 0.0
    last_step_tokens: int = 0
    _waits: Waits = (0.0, ())
    _waits_s: float = -math.inf  # when they were predicted

    def admitted(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            self.prefix_cache_queries += sequence.prefill_len
            self.prefix_cache_hits += sequence.num_applied

    def applied(self, plan: ScheduledStep, num_tokens: int, step_s: float) -> None:
        """`num_tokens`: tokens appended to outputs."""
        self.prompt_tokens += plan.num_prompt_tokens
        self.generation_tokens += num_tokens
        for verification in plan.verifications:
            self.draft_tokens += verification.num_drafted
            self.accepted_tokens += verification.num_sampled - 1
            if verification.num_drafted:
                self._count_run(verification.num_sampled - 1)
        self.last_step_s, self.last_step_tokens = step_s, plan.num_tokens
        self.step_tokens += self.last_step_tokens
        self.steps_by_tokens[bisect_left(STEP_TOKENS, self.last_step_tokens)] += 1

    def _count_run(self, num_accepted: int) -> None:
        self.num_drafts += 1
        self.runs += [0] * (num_accepted + 1 - len(self.runs))
        self.runs[num_accepted] += 1

    def accepted_per_position(self) -> tuple[int, ...]:
        """How many drafts were accepted as the first of their row in a step, as the second, and so on."""
        return tuple(accumulate(reversed(self.runs[1:])))[::-1]

    def snapshot(self, scheduler: Scheduler, predict: Callable[[], Waits], now: float) -> SchedulerStats:
        """`predict`: the wait of a tenant without a waiting sequence, and of each other; called once per interval."""
        if now - self._waits_s >= STATS_INTERVAL_S:
            self._waits, self._waits_s = predict(), now
        kv_cache, (wait_s, tenants) = scheduler.kv_cache, self._waits
        return SchedulerStats(
            num_running=len(scheduler.running),
            num_waiting=scheduler.num_waiting,
            num_blocks=kv_cache.pool.num_blocks,
            num_free_blocks=kv_cache.pool.num_free,
            step=scheduler.step,
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
            prefix_cache_queries=self.prefix_cache_queries,
            prefix_cache_hits=self.prefix_cache_hits,
            num_preemptions=scheduler.num_preemptions,
            last_step_s=self.last_step_s,
            last_step_tokens=self.last_step_tokens,
            wait_s=wait_s,
            tenants=tenants,
            draft_tokens=self.draft_tokens,
            accepted_tokens=self.accepted_tokens,
            adapters=scheduler.waiting.adapters.stats(MAX_ADAPTER_STATS),
            num_drafts=self.num_drafts,
            accepted_per_position=self.accepted_per_position(),
            kv_tier=None if kv_cache.tiers is None else kv_cache.tiers.stats(),
            step_tokens=self.step_tokens,
            steps_by_tokens=tuple(self.steps_by_tokens),
        )
