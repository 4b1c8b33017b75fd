"""What one seed makes of the world: configuration, cache size, load, tempers and faults."""

import random
from dataclasses import dataclass
from typing import Any

from paged_serve.protocol.messages.config import CacheConfig, Config, SchedulerConfig
from paged_serve.protocol.messages.engine_core import EngineCoreRequest
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.repetitions import RepetitionDetection
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..admission.validation import ModelFacts

EOS = 0
TENANTS = (("", 1.0), ("a", 1.0), ("b", 2.0), ("c", 0.25))


@dataclass(frozen=True, slots=True)
class Scenario:
    """Faults are probabilities per tick of the simulation."""

    seed: int
    config: Config
    facts: ModelFacts
    num_clients: int
    num_requests: int
    client_credit: int  # messages that a client leaves unacknowledged
    client_pace: float  # chance per tick that a client takes its next message
    abort: float
    worker_death: float
    core_death: float
    silence: float
    nan: float  # per sampled token
    tenants: tuple[tuple[str, float], ...]  # names and weights
    ttl: float  # chance that a request has a time limit
    poison: int | None  # a worker dies when it computes a sequence of this seed beyond its third token
    spoil: float = 0.0  # a KV slot holds what is not finite
    slow_step: float = 0.0
    clock_jump: float = 0.0
    duplicate: float = 0.0  # per request and per answer, not per tick
    max_passes: int = 4  # admissions past a sequence that does not fit
    broken_worker: float = 0.0  # per answer: the worker also violates the protocol


def draw_scenario(seed: int) -> Scenario:
    """Tiny pools, tiny blocks and short contexts, so that everything collides with everything."""
    rng = random.Random(seed)
    block_size: Any = rng.choice((1, 2, 4, 8))
    max_model_len = rng.randint(8, 64)
    blocks_of_longest = max_model_len // block_size + 1
    config = Config(
        cache=CacheConfig(block_size=block_size, enable_prefix_caching=rng.random() < 0.7),
        scheduler=SchedulerConfig(
            max_num_seqs=rng.randint(1, 8),
            max_num_batched_tokens=rng.randint(2, 40),
            policy=rng.choice(("fcfs", "priority")),
            pipeline_depth=rng.randint(1, 3),
            max_num_queued_requests=rng.choice((4, 100)),
            max_unacknowledged_bytes=rng.choice((1 << 28, 1 << 28, 1000, 4000)),
        ),
    )
    facts = ModelFacts(
        num_blocks=blocks_of_longest + rng.choice((-1, 0, 2, blocks_of_longest, 3 * blocks_of_longest)),
        max_model_len=max_model_len,
        vocab_size=rng.choice((8, 40, 500)),
        eos_token_ids=frozenset({EOS}),
    )
    return Scenario(
        seed=seed,
        config=config,
        facts=facts,
        num_clients=rng.randint(1, 3),
        num_requests=rng.randint(5, 40),
        client_credit=rng.choice((1, 3, 256)),
        client_pace=rng.choice((0.1, 0.5, 0.9)),
        abort=rng.choice((0.0, 0.01, 0.05)),
        worker_death=rng.choice((0.0, 0.0, 0.003, 0.02)),
        core_death=rng.choice((0.0, 0.0, 0.002)),
        silence=rng.choice((0.0, 0.0, 0.0005, 0.005)),
        nan=rng.choice((0.0, 0.0, 0.003)),
        tenants=TENANTS[: rng.choice((1, 1, 2, 4))],
        ttl=rng.choice((0.0, 0.0, 0.3)),
        poison=rng.choice((None, None, None, 5)),
        spoil=rng.choice((0.0, 0.0, 0.001, 0.01)),
        slow_step=rng.choice((0.0, 0.005)),
        clock_jump=rng.choice((0.0, 0.002)),
        duplicate=rng.choice((0.0, 0.1)),
        max_passes=rng.choice((0, 1, 4)),
        broken_worker=rng.choice((0.0, 0.0, 0.01)),
    )


def draw_request(rng: random.Random, scenario: Scenario, request_id: int, max_ttl_s: float) -> EngineCoreRequest:
    tenant, weight = rng.choice(scenario.tenants)
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=pack_ids(draw_prompt(rng, scenario.facts)),
        sampling_params=draw_params(rng, scenario.facts),
        priority=rng.randint(-2, 2) if scenario.config.scheduler.policy == "priority" else 0,
        cache_salt=rng.choice(("", "", "salt")),
        tenant=tenant,
        weight=weight,
        ttl_s=rng.uniform(0.0, max_ttl_s) if rng.random() < scenario.ttl else 0.0,
    )


def draw_prompt(rng: random.Random, facts: ModelFacts) -> list[int]:
    """Often a prefix of one of two texts, with or without a tail of its own."""
    length = rng.randint(1, facts.max_model_len - 1)
    story = random.Random(rng.randint(0, 1))
    prompt = [story.randrange(facts.vocab_size) for _ in range(length)]
    if rng.random() < 0.5:
        keep = rng.randint(0, length)
        prompt[keep:] = [rng.randrange(facts.vocab_size) for _ in range(length - keep)]
    return prompt


def draw_params(rng: random.Random, facts: ModelFacts) -> SamplingParams:
    max_tokens = rng.choice((None, 1, 2, rng.randint(1, facts.max_model_len)))
    stop_ids = tuple(rng.randrange(facts.vocab_size) for _ in range(rng.choice((0, 0, 1, 2))))
    return SamplingParams(
        n=rng.choice((1, 1, 1, 2, 4)),
        seed=rng.choice((None, rng.randrange(12))),
        max_tokens=max_tokens,
        min_tokens=rng.randint(0, max_tokens or 6) if rng.random() < 0.3 else 0,
        ignore_eos=rng.random() < 0.4,
        stop_token_ids=stop_ids,
        logprobs=rng.choice((None, None, 0, 2)),
        prompt_logprobs=rng.choice((None, None, None, 1)),
        skip_reading_prefix_cache=rng.random() < 0.1,
        repetition_detection=RepetitionDetection(max_pattern_size=3, min_count=2) if rng.random() < 0.2 else None,
    )
