"""What a simulation was worth: steps, streams, and how much went wrong in it."""

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Outcomes:
    """Counts; `add` sums up runs."""

    steps: int = 0
    streams: int = 0
    tokens: int = 0
    vectors: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    aborts: int = 0
    overloads: int = 0
    expired: int = 0
    worker_deaths: int = 0
    crashes: int = 0  # of them, by a request that kills
    core_deaths: int = 0
    silent_clients: int = 0
    reused: int = 0  # requests that began with what a lost client's had
    nans: int = 0  # results that were not finite
    spoiled: int = 0  # slots
    errors: int = 0
    poisoned: int = 0
    steps_behind: int = 0
    slow_steps: int = 0
    clock_jumps: int = 0
    duplicates: int = 0
    late_aborts: int = 0
    broken_workers: int = 0  # that violated the protocol
    halts: int = 0  # of the core, longer than a client's lease
    retries: int = 0  # requests that a new core was too full to take back at once
    paused: int = 0  # clients that held too much
    passes: int = 0  # admissions past a sequence that did not fit

    def add(self, other: "Outcomes") -> None:
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))
