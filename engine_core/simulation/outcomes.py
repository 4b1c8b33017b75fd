"""The results of a simulation: its steps and streams, and how many faults occurred in it."""

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Outcomes:
    """The counts of one simulation, or of several that were added up."""

    steps: int = 0
    streams: int = 0
    tokens: int = 0
    vectors: int = 0
    cached_tokens: int = 0
    copies: int = 0  # of blocks
    draft_tokens: int = 0
    accepted_tokens: int = 0  # drafts that became output, or would have
    preemptions: int = 0
    aborts: int = 0
    overloads: int = 0
    expired: int = 0
    worker_deaths: int = 0
    crashes: int = 0  # worker deaths caused by a poison request
    core_deaths: int = 0
    silent_clients: int = 0
    reused: int = 0  # requests that started with the output of an abandoned request
    nans: int = 0  # results that were not finite
    spoiled: int = 0  # KV slots poisoned
    errors: int = 0
    poisoned: int = 0
    steps_behind: int = 0
    slow_steps: int = 0
    clock_jumps: int = 0
    duplicates: int = 0
    late_aborts: int = 0
    broken_workers: int = 0  # workers that violated the protocol
    halts: int = 0  # times that the core stood still for longer than a client's lease
    retries: int = 0  # requests that a new core had to reject at first because it was full
    paused: int = 0  # clients paused for their unacknowledged bytes
    loads: int = 0  # of LoRA adapters
    load_crashes: int = 0  # worker deaths caused by an adapter
    refused: int = 0  # requests that ended because their adapter was not loaded
    failed: int = 0  # requests and streams that ended because no token could be sampled
    resets: int = 0  # of the prefix cache
    passes: int = 0  # admissions past a sequence that did not fit
    stores: int = 0  # of blocks in the workers' tiers
    tier_loads: int = 0
    torn_blocks: int = 0  # loaded with wrong contents, or not there any more
    late_answers: int = 0  # to loads, after the sequence has given them up

    def add(self, other: "Outcomes") -> None:
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))
