"""Draws a scenario from a seed: configuration, cache size, load, the behaviour of clients, and faults."""

import random
from dataclasses import dataclass, replace

from msgspec.structs import replace as replace_struct

from paged_serve.protocol.messages.config import CacheConfig, Config, KVEventsConfig, SchedulerConfig, SpeculationConfig
from paged_serve.protocol.messages.loading.adapters import Adapter
from paged_serve.protocol.messages.loading.startup import KVGroup

from ...admission.pooling import PoolingFacts
from ...admission.validation import ModelFacts
from ...scheduling.scheduler import Scheduler
from ..correct_results import VECTOR_SIZE
from .drawn_tiers import with_tiers
from .random_policy import RandomPolicy

EOS = 0
TENANTS = (("", 1.0), ("a", 1.0), ("b", 2.0), ("c", 0.25))


@dataclass(frozen=True, slots=True)
class Scenario:
    """One simulation. Faults are probabilities per tick unless noted."""

    seed: int
    config: Config
    facts: ModelFacts
    num_clients: int
    num_requests: int
    client_credit: int  # messages that may be unacknowledged
    client_pace: float  # chance per tick that a client reads its next message
    abort: float
    worker_death: float
    core_death: float
    silence: float
    nan: float  # per sampled token
    tenants: tuple[tuple[str, float], ...]  # names and weights
    ttl: float  # chance that a request has a time limit
    poison: int | None  # a worker dies when it computes a sequence of this seed beyond its third token
    spoil: float = 0.0  # a KV slot gets a value that is not finite
    slow_step: float = 0.0
    clock_jump: float = 0.0
    duplicate: float = 0.0  # per request and per answer, not per tick
    max_passes: int = 4  # admissions past a sequence that does not fit
    broken_worker: float = 0.0  # per answer: the worker also violates the protocol
    pooling: float = 0.0  # share of pooling requests
    draft_accuracy: float = 0.0  # chance that a draft is right
    draws_drafts: bool = False  # a random policy decides which sequences speculate, not that of the configuration
    token_s: float = 0.0  # seconds of a step for each token, besides its constant
    adapters: tuple[Adapter, ...] = ()  # that requests may name
    load_speed: float = 1.0  # chance per tick that a load ends
    failure: float = 0.0  # per sampled token
    reset: float = 0.0  # the prefix cache is emptied

    def set_up(self, scheduler: Scheduler, epoch: int) -> None:
        """Put the parts of this simulation into the scheduler of a core."""
        scheduler.row_assigner.max_passes = self.max_passes
        scheduler.loading.prompt_token_s = lambda: 0.0  # every load is worth it
        if self.draws_drafts:
            rng = random.Random(f"policy of {self.seed}, {epoch}")
            scheduler.speculation.policy = RandomPolicy(self.config.speculation.num_drafts, rng)


def happens(rng: random.Random, chance: float) -> bool:
    """Draws no number for what cannot happen."""
    return chance > 0.0 and rng.random() < chance


def blocks_of_alone(length: int, groups: tuple[KVGroup, ...], size: int, chunk: int) -> int:
    """The most blocks that a sequence of `length` tokens holds at once when it runs alone, counted one by one.

    `size`: tokens of a block; `chunk`: the most tokens of a step.
    """
    count = 0
    for group in groups:
        touched = -(-length // size)
        if window := 2 if group.is_state else group.window:
            seen = window - 1 + chunk  # tokens that a chunk attends to
            touched = min(touched, max(len({p // size for p in range(at, at + seen)}) for at in range(size)))
        if group.attention_chunk:
            seen, starts = group.attention_chunk - 1 + chunk, [group.attention_chunk * n for n in range(size)]
            touched = min(touched, max(len({p // size for p in range(at, at + seen)}) for at in starts))
        count += touched
    return count


def capacity_tokens(scenario: Scenario) -> int:
    """The longest sequence that fits alone, rounded up to whole blocks, up to the model's maximum length."""
    facts, size = scenario.facts, scenario.facts.block_size
    chunk = scenario.config.scheduler.max_num_batched_tokens
    lengths = range(0, facts.max_model_len + size, size)
    return max(n for n in lengths if blocks_of_alone(n, facts.kv_groups, size, chunk) <= facts.num_blocks)


def draw_scenario(seed: int, *, may_have_tiers: bool = True) -> Scenario:
    """Small pools, small blocks and short contexts, so that shortages and faults coincide often."""
    rng = random.Random(seed)
    block_size = rng.choice((1, 2, 4, 8))
    max_model_len = rng.randint(8, 64)
    config = _draw_config(rng, seed)
    facts = _draw_facts(rng, block_size, max_model_len)
    max_chunk = config.scheduler.max_num_batched_tokens
    # each draws from a generator of its own, so that the other draws of a seed do not depend on it
    facts = with_groups(facts, max_chunk, random.Random(f"KV groups of {seed}"))
    facts = with_states(facts, max_chunk, random.Random(f"states of {seed}"))
    facts, pooling = with_pooling(facts, random.Random(f"kinds {seed}"))
    scenario = Scenario(
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
        pooling=pooling,
    )
    scenario = with_speculation(scenario, random.Random(f"speculation of {seed}"))
    if not may_have_tiers:
        return scenario
    config, worker_death = with_tiers(scenario.config, scenario.worker_death, random.Random(f"tiers {seed}"))
    return replace(scenario, config=config, worker_death=worker_death)


def _draw_config(rng: random.Random, seed: int) -> Config:
    return Config(
        cache=CacheConfig(enable_prefix_caching=rng.random() < 0.7),
        kv_events=KVEventsConfig("ipc://simulated" if seed % 2 else ""),
        scheduler=SchedulerConfig(
            max_num_seqs=rng.randint(1, 8),
            max_num_batched_tokens=rng.randint(2, 40),
            policy=rng.choice(("fcfs", "priority")),
            pipeline_depth=rng.randint(1, 3),
            max_num_queued_requests=rng.choice((4, 100)),
            max_unacknowledged_bytes=rng.choice((1 << 28, 1 << 28, 1000, 4000)),
        ),
    )


def _draw_facts(rng: random.Random, block_size: int, max_model_len: int) -> ModelFacts:
    blocks_of_longest = max_model_len // block_size + 1
    return ModelFacts(
        num_blocks=blocks_of_longest + rng.choice((-1, 0, 2, blocks_of_longest, 3 * blocks_of_longest)),
        block_size=block_size,
        max_model_len=max_model_len,
        vocab_size=rng.choice((8, 40, 500)),
        eos_token_ids=frozenset({EOS}),
    )


def with_speculation(scenario: Scenario, rng: random.Random) -> Scenario:
    """Half of the scenarios speculate."""
    num_drafts = rng.choice((0, 0, 0, 1, 4, 8))
    if not num_drafts:
        return replace(scenario, config=replace_struct(scenario.config, speculation=SpeculationConfig("off")))
    scenario = replace(
        scenario,
        draft_accuracy=rng.choice((0.0, 0.5, 0.9, 1.0)),
        draws_drafts=rng.random() < 0.7,
        token_s=rng.choice((0.0, 0.0001, 0.001)),
    )
    speculation = SpeculationConfig("ngram", num_drafts, adaptive=rng.random() < 0.5)
    return replace(scenario, config=replace_struct(scenario.config, speculation=speculation))


def with_pooling(facts: ModelFacts, rng: random.Random) -> tuple[ModelFacts, float]:
    """The model with its pooling tasks, and the share of pooling requests."""
    share = rng.choice((0.0, 0.0, 0.3, 1.0))
    is_bidirectional = share == 1.0 and rng.random() < 0.5
    pooling = PoolingFacts(
        tasks=("embed", "token_embed") if is_bidirectional else ("generate", "embed", "token_embed"),
        embedding_size=VECTOR_SIZE,
        needs_whole_prompt=is_bidirectional or rng.random() < 0.3,
        is_bidirectional=is_bidirectional,
    )
    return replace(facts, pooling=pooling), share


def with_groups(facts: ModelFacts, max_chunk: int, rng: random.Random) -> ModelFacts:
    """Half of the models have one full group; the others have windows in all layers or in some of them.

    Some of the windows become attention chunks of the same size.
    """
    kind = rng.choice(("full", "full", "full", "window", "mixed", "mixed"))
    if kind == "full":
        return facts
    windows = [rng.choice((1, 2, 3, 8, 20)) for _ in range(1 if kind == "window" else rng.randint(1, 3))]
    if rng.random() < 0.5:
        windows = [windows[0]] * len(windows)
    if kind == "mixed":
        windows += [0] * rng.choice((1, 1, 2))
        rng.shuffle(windows)
    chunked = {window for window in dict.fromkeys(windows) if window and rng.random() < 0.4}
    groups = tuple(KVGroup(attention_chunk=n) if n in chunked else KVGroup(n) for n in windows)
    return fitted(facts, groups, max_chunk, rng)


def with_states(facts: ModelFacts, max_chunk: int, rng: random.Random) -> ModelFacts:
    """A third of the models have one or two state groups, in addition to the others or in place of them."""
    states = (KVGroup(is_state=True),) * rng.choice((0, 0, 0, 0, 1, 2))
    if not states:
        return facts
    others = facts.kv_groups if rng.random() < 0.8 else ()
    groups = (*states, *others) if rng.random() < 0.5 else (*others, *states)
    return fitted(facts, groups, max_chunk, rng)


def fitted(facts: ModelFacts, groups: tuple[KVGroup, ...], max_chunk: int, rng: random.Random) -> ModelFacts:
    """`facts` with these groups, and a pool in which a sequence of full length just fits, or does not, or with ease."""
    longest = blocks_of_alone(facts.max_model_len, groups, facts.block_size, max_chunk)
    num_blocks = longest + rng.choice((-1, 0, 2, longest, 3 * longest))
    return replace(facts, num_blocks=max(num_blocks, len(groups)), kv_groups=groups)
