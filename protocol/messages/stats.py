"""Statistics of the engine core: clients get them with outputs and heartbeats, and export them as metrics."""

from typing import Annotated

from msgspec import Meta

from .message import Count, Record, Seconds, ShortText, Step

MAX_TENANT_STATS = 32
MAX_ADAPTER_STATS = 64
STEP_TOKENS = (1, *(2**power for power in range(3, 15)))  # bounds of the counts of steps by their tokens


class TenantStats(Record, frozen=True):
    """A tenant with waiting sequences."""

    tenant: ShortText
    num_queued: Count  # sequences
    wait_s: Seconds  # predicted, until a sequence arriving now is scheduled
    is_full: bool  # its share of the queue is full: new requests are rejected


class AdapterStats(Record, frozen=True):
    """A LoRA adapter that has a place, or that requests wait for."""

    name: ShortText
    is_loaded: bool
    num_running: Count  # sequences
    num_waiting: Count


class KVTierStats(Record, frozen=True):
    """What the tiers have, and what was moved since the engine core started. Bytes are those of all ranks."""

    used_bytes: Step
    num_loads: Step = 0
    load_s: Seconds = 0.0  # from each load's message to the last rank's answer
    loaded_blocks: Step = 0
    loaded_bytes: Step = 0
    failed_blocks: Step = 0  # were to be loaded, but damaged or deleted
    num_stores: Step = 0
    store_s: Seconds = 0.0
    stored_blocks: Step = 0
    stored_bytes: Step = 0


class SchedulerStats(Record, frozen=True):
    """A snapshot of the engine; counters start at zero in each epoch."""

    num_running: Count
    num_waiting: Count
    num_blocks: Count
    num_free_blocks: Count  # free or cached and unreferenced
    step: Step
    prompt_tokens: Step  # computed; cache hits are not counted
    generation_tokens: Step
    prefix_cache_queries: Step  # tokens
    prefix_cache_hits: Step  # tokens
    num_preemptions: Step
    last_step_s: Seconds
    last_step_tokens: Count
    wait_s: Seconds = 0.0  # predicted, for a tenant without a waiting sequence
    tenants: Annotated[tuple[TenantStats, ...], Meta(max_length=MAX_TENANT_STATS)] = ()  # the longest queues first
    draft_tokens: Step = 0  # drafts that were verified
    accepted_tokens: Step = 0  # of these, drafts that agreed with the model's tokens
    adapters: Annotated[tuple[AdapterStats, ...], Meta(max_length=MAX_ADAPTER_STATS)] = ()
    num_drafts: Step = 0  # verifications with drafts
    accepted_per_position: Annotated[tuple[Step, ...], Meta(max_length=64)] = ()  # by place among a row's drafts
    kv_tier: KVTierStats | None = None  # None: there is no tier
    step_tokens: Step = 0  # of all steps
    # Steps of at most STEP_TOKENS[0] tokens, of more but at most STEP_TOKENS[1], and so on; the last: of more than all.
    steps_by_tokens: Annotated[tuple[Step, ...], Meta(max_length=len(STEP_TOKENS) + 1)] = ()
