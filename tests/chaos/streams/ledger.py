"""The results of a load: counts, latencies and failures."""

import statistics
from collections import Counter
from dataclasses import dataclass, field

from paged_serve.frontend.client.async_client import AsyncClient
from paged_serve.protocol.messages.stats import SchedulerStats

from .transports import Attempt

NEAR_S = 0.5  # a silence that overlaps this time after a fault counts as caused by it


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, its process and its time (`time.monotonic` seconds)."""

    kind: str
    at: float
    pid: int


@dataclass(slots=True)
class Ledger:
    """`wrong`: streams that differ from the expected ones; `lost`: accepted streams without a regular end."""

    requests: int = 0
    completed: int = 0
    aborted: int = 0
    tokens: int = 0
    refused: int = 0  # requests that were refused with Retry-After at the first try
    broken: int = 0  # connections that ended before their answer
    resumed: int = 0  # of them, answers that resumed after the last event received
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    attempts: dict[int, Attempt] = field(default_factory=dict)  # by id, so that a resumed attempt counts once
    reasons: Counter[str] = field(default_factory=Counter)
    stats: dict[int, SchedulerStats] = field(default_factory=dict)  # the latest of each epoch

    def saw(self, client: AsyncClient) -> None:
        """Keep the engine's statistics, whose counters start anew with each engine core."""
        if client.stats is not None:
            self.stats[client.limits.epoch] = client.stats

    @property
    def features(self) -> dict[str, int]:
        """How often the features at work were used: 0 says that the faults did not meet them."""
        tiers = [stats.kv_tier for stats in self.stats.values() if stats.kv_tier is not None]
        return {
            "drafts verified": sum(stats.draft_tokens for stats in self.stats.values()),
            "drafts accepted": sum(stats.accepted_tokens for stats in self.stats.values()),
            "adapters in places": sum(adapter.is_loaded for stats in self.stats.values() for adapter in stats.adapters),
            "blocks stored": sum(tier.stored_blocks for tier in tiers),
            "blocks loaded": sum(tier.loaded_blocks for tier in tiers),
        }

    @property
    def admitted(self) -> float:
        """Share of requests that were accepted at the first attempt."""
        return 1.0 if not self.requests else 1 - self.refused / self.requests

    def stalls(self) -> dict[str, list[float]]:
        """By kind of fault: for each stream that ran at its time, the longest silence near it in seconds."""
        found: dict[str, list[float]] = {fault.kind: [] for fault in self.faults}
        for fault in self.faults:
            for attempt in self.attempts.values():
                if attempt.sent_at < fault.at < attempt.heard_at:
                    near = [
                        end - begin for begin, end in attempt.silences if begin < fault.at + NEAR_S and end > fault.at
                    ]
                    found[fault.kind].append(max(near, default=0.0))
        return found

    def report(self) -> str:
        times = Counter(fault.kind for fault in self.faults)
        width = max(map(len, times), default=28)
        rows = [f"{'fault':{width}s} {'times':>5s} {'streams':>7s} {'stall median':>12s} {'max':>6s}"]
        for kind, stalls in sorted(self.stalls().items()):
            median, most = (statistics.median(stalls), max(stalls)) if stalls else (0.0, 0.0)
            rows.append(f"{kind:{width}s} {times[kind]:5d} {len(stalls):7d} {median:10.2f} s {most:4.2f} s")
        rows += [
            f"faults {len(self.faults)}, requests {self.requests}, completed {self.completed}, aborted {self.aborted}, "
            f"tokens {self.tokens}, wrong {len(self.wrong)}, lost {len(self.lost)}",
            f"connections broken {self.broken} (resumed {self.resumed}), "
            f"admitted at the first try {100 * self.admitted:.2f} %",
        ]
        rows.append(", ".join(f"{name} {count}" for name, count in self.features.items()))
        rows += [f"refused {count} x {reason}" for reason, count in self.reasons.most_common(5)]
        rows += [f"WRONG {what}" for what in self.wrong[:20]] + [f"LOST {what}" for what in self.lost[:20]]
        return "\n".join(rows)
