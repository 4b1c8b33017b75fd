"""Draws the requests of a scenario: prompts that share prefixes, and parameters of every kind."""

import random

from msgspec.structs import replace

from paged_serve.protocol.block_hash import TOKEN_BYTES
from paged_serve.protocol.messages.engine_core import EngineCoreRequest
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.pooling_params import PoolingParams
from paged_serve.protocol.messages.samplers import RepetitionDetection
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ...admission.validation import ModelFacts
from ..correct_results import VECTOR_SIZE
from .scenario import Scenario


def draw_request(rng: random.Random, scenario: Scenario, request_id: int, max_ttl_s: float) -> EngineCoreRequest:
    tenant, weight = rng.choice(scenario.tenants)
    request = EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=pack_ids(draw_prompt(rng, scenario.facts)),
        sampling_params=draw_params(rng, scenario.facts),
        priority=rng.randint(-2, 2) if scenario.config.scheduler.policy == "priority" else 0,
        cache_salt=rng.choice(("", "", "salt")),
        tenant=tenant,
        weight=weight,
        ttl_s=rng.uniform(0.0, max_ttl_s) if rng.random() < scenario.ttl else 0.0,
    )
    if scenario.pooling and rng.random() < scenario.pooling:
        return for_pooling(request, rng, scenario)
    return request


def for_pooling(request: EngineCoreRequest, rng: random.Random, scenario: Scenario) -> EngineCoreRequest:
    """A pooling request with the same prompt, cut to the longest that the model accepts."""
    facts, prompt = scenario.facts, request.prompt_token_ids
    if rng.random() < 0.2:
        prompt = prompt + pack_ids(rng.randrange(facts.vocab_size) for _ in range(facts.max_model_len))
    pooling = PoolingParams(
        rng.choice(("embed", "embed", "token_embed")),
        dimensions=rng.choice((None, None, 1, VECTOR_SIZE)),
        skip_reading_prefix_cache=rng.random() < 0.1,
    )
    return replace(
        request,
        prompt_token_ids=prompt[: TOKEN_BYTES * longest_prompt(scenario)],
        sampling_params=SamplingParams(),
        pooling_params=pooling,
    )


def longest_prompt(scenario: Scenario) -> int:
    """The longest prompt of a pooling request; the context, the cache and, without causality, one step bound it."""
    facts, config = scenario.facts, scenario.config
    longest = min(facts.max_model_len, facts.num_blocks * facts.block_size)
    return min(longest, config.scheduler.max_num_batched_tokens) if facts.pooling.is_bidirectional else longest


def draw_prompt(rng: random.Random, facts: ModelFacts) -> list[int]:
    """Often a prefix of one of two texts, half the time followed by random tokens."""
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
