"""The results of a load: counts, latencies and failures."""

import statistics
from collections import Counter
from dataclasses import dataclass, field

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
        rows += [f"refused {count} x {reason}" for reason, count in self.reasons.most_common(5)]
        rows += [f"WRONG {what}" for what in self.wrong[:20]] + [f"LOST {what}" for what in self.lost[:20]]
        return "\n".join(rows)
