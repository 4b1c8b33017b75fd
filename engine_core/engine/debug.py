"""Audits and dumps the whole engine: in tests after every step, for operators through the utility calls."""

from typing import Any

import msgspec

from ..requests.request import Sequence, SequenceState
from ..requests.tenant import OUTPUT_TOKEN_COST
from ..scheduling.fair_share import FIRST_COST, MAX_LEAD_BATCHES
from ..scheduling.scheduler import Scheduler
from ..scheduling.speculation import bounds_of
from .engine import EngineCore

MAX_DESCRIPTION_BYTES = 1 << 20


def check_invariants(engine: EngineCore) -> None:
    """Raise AssertionError for the first broken invariant. Takes time linear in the live state; changes nothing."""
    scheduler = engine.scheduler
    engine.kv_cache.check(scheduler.running)
    scheduler.waiting.check()
    scheduler.waiting.adapters.check(scheduler.running)
    scheduler.shares.check()
    _check_tenants(scheduler, live_sequences(engine))
    _check_clients(engine)
    _check_leads(engine)
    _check_states(engine)
    _check_rows(scheduler, engine.config.scheduler.pipeline_depth * scheduler.speculation.policy.num_drafts)
    _check_passes(scheduler, live_sequences(engine))
    _check_decode_set(scheduler)
    _check_calendars(scheduler)
    _check_speculation(scheduler)
    if scheduler.worker_poison.sequences():
        alone = {sequence for step in scheduler.in_flight for sequence in step.sequences()}
        assert len(alone) <= 1, "a candidate does not run alone"
    assert len(scheduler.in_flight) <= engine.config.scheduler.pipeline_depth, "too many steps in flight"


def _check_clients(engine: EngineCore) -> None:
    """The unacknowledged bytes add up, and the sequences of paused clients are in order, each with its client."""
    for outbox in engine.clients.values():
        outbox.check()
    total = sum(outbox.unacknowledged_bytes for outbox in engine.clients.values())
    assert engine.unacknowledged.num_bytes == total, "unacknowledged bytes of all clients do not add up"
    for client, paused in engine.scheduler.waiting.paused.items():
        assert client in engine.clients, "a client that was removed is still paused"
        orders = [sequence.order for sequence in paused]
        assert orders == sorted(orders), "the sequences of a paused client are out of order"
        assert all(sequence.request.client == client for sequence in paused), "another client's sequence is paused"


def live_sequences(engine: EngineCore) -> list[Sequence]:
    return [sequence for outbox in engine.clients.values() for sequence in outbox.streams.values()]


def _check_tenants(scheduler: Scheduler, live: list[Sequence]) -> None:
    """Every tenant's counts are those of its sequences."""
    for tenant in scheduler.shares.tenants.values():
        own = [sequence for sequence in live if sequence.request.tenant is tenant]
        queued = [sequence for sequence in own if sequence.state is SequenceState.WAITING]
        assert (tenant.num_live, tenant.num_queued) == (len(own), len(queued)), f"tenant {tenant.name!r}: wrong counts"
        assert tenant.queued_prompt_tokens == sum(s.num_tokens for s in queued), "queued_prompt_tokens is wrong"
        assert tenant.queued_output_tokens == sum(s.token_limit - s.num_tokens for s in queued), "queued_output_tokens"
        assert tenant.num_decoding == sum(bool(s.joined_step) for s in own), f"tenant {tenant.name!r}: num_decoding"


def _check_leads(engine: EngineCore) -> None:
    """No tenant waits forever: a lead is bounded by the cost of all rows at their longest."""
    shares, rows = engine.scheduler.shares, engine.scheduler.max_num_rows
    longest = MAX_LEAD_BATCHES * rows * max(FIRST_COST, OUTPUT_TOKEN_COST * engine.facts.max_model_len)
    for tenant in shares.tenants.values():
        assert tenant.service - shares.virtual_time <= longest, f"tenant {tenant.name!r} has too large a lead"


def _check_states(engine: EngineCore) -> None:
    """Every live sequence runs or waits, in exactly one list, and the counters are right."""
    scheduler = engine.scheduler
    live = live_sequences(engine)
    followers = {sequence for live_one in live for sequence in live_one.request.followers}
    paused = [sequence for sequences in scheduler.waiting.paused.values() for sequence in sequences]
    beside = [*paused, *scheduler.waiting.adapters.held(), *followers, *scheduler.loading]
    found = [*scheduler.waiting, *beside, *scheduler.running]
    assert len(found) == len(set(found)) == len(live) == scheduler.num_live, "a sequence is lost or in two lists"
    assert set(found) == set(live), "a sequence that no client owns is live"
    for sequence in scheduler.running:
        assert sequence.state is SequenceState.RUNNING, f"stream {sequence.stream_id} is {sequence.state.name}"
    owners = {sequence for sequence in live if sequence.block_tables}
    assert owners == set(scheduler.running), "a sequence that does not run has blocks, or one that runs has none"
    queued = [sequence for sequence in live if sequence.state is SequenceState.WAITING]
    assert len(queued) == scheduler.num_queued, "num_queued is wrong"
    assert sum(sequence.num_tokens for sequence in queued) == scheduler.num_queued_tokens, "num_queued_tokens is wrong"
    assert scheduler.worker_poison.sequences() <= set(live), "a sequence that has ended is a candidate"
    for sequence in followers:
        leads = sequence.request.leader in scheduler.running
        assert leads, f"stream {sequence.stream_id} waits for a leader that does not run"


def _check_passes(scheduler: Scheduler, live: list[Sequence]) -> None:
    """No sequence waits forever: a bounded number of later sequences is admitted before it."""
    for sequence in live:
        is_bounded = sequence.num_passed <= scheduler.row_assigner.max_passes
        assert is_bounded, f"stream {sequence.stream_id} was passed too often"


def _check_rows(scheduler: Scheduler, most_drafts: int) -> None:
    """`most_drafts`: of one row in all steps in flight; a row keeps blocks of drafts that were not accepted."""
    orders = [sequence.order for sequence in scheduler.running]
    assert orders == sorted(orders), "running is out of order"
    rows = [*scheduler.free_rows, *(sequence.row for sequence in scheduler.running)]
    assert sorted(rows) == list(range(scheduler.max_num_rows)), "a row is lost or used twice"
    for sequence in scheduler.running:
        _check_tables(scheduler, sequence, most_drafts)
        assert sequence.num_tokens <= sequence.token_limit, f"stream {sequence.stream_id} is over its limit"
    unplanned = [sequence for sequence in scheduler.running if sequence.num_scheduled < sequence.prefill_len]
    assert unplanned == scheduler.prefilling, "prefilling is wrong"


def _check_tables(scheduler: Scheduler, sequence: Sequence, most_drafts: int) -> None:
    """Each table covers the computed tokens and all that the next token reads; blocks behind windows are released."""
    groups, block_size = scheduler.kv_cache.groups, scheduler.kv_cache.block_size
    position, num_tokens = sequence.span
    if sequence.joined_step:
        position = num_tokens = sequence.prefill_len + scheduler.step + 1 - sequence.joined_step
    for table, released, group in zip(sequence.block_tables, sequence.num_released, groups.math, strict=True):
        room = len(table) * block_size
        planned = position if sequence.speculating is None else num_tokens
        assert room >= max(sequence.num_kv_applied, planned - 1), f"stream {sequence.stream_id} has too little room"
        if sequence.joined_step or position < num_tokens:  # all tokens of other rows are planned
            is_read = released <= group.first_needed(position)
            assert is_read, f"stream {sequence.stream_id} has lost a block that it reads"
        if sequence.joined_step and room > sequence.prefill_len + block_size + most_drafts:
            least = group.first_needed(room - block_size - most_drafts)
            assert released >= least, f"stream {sequence.stream_id} keeps blocks behind its window"


def _check_decode_set(scheduler: Scheduler) -> None:
    decode = scheduler.decode_rows.decode_set
    assert decode.rows == sorted(set(decode.rows)), "the decode set is out of order"
    assert decode.rows == [sequence.row for sequence in decode.sequences], "the decode set has a wrong row"
    members = {sequence for sequence in scheduler.running if sequence.joined_step}
    assert set(decode.sequences) == members, "the decode set is not the set of sequences that decode"
    assert decode.stream_ids.tolist() == [sequence.stream_id for sequence in decode.sequences]
    for sequence, first in zip(decode.sequences, decode.first_positions, strict=True):
        position = sequence.prefill_len - sequence.request.prompt_len + 1 + scheduler.step - sequence.joined_step
        assert first + scheduler.step - decode.origin == position, f"stream {sequence.stream_id}: wrong position"
    assert decode.stop_ids == frozenset().union(*(sequence.stop_ids for sequence in decode.sequences)), "stop ids"
    assert sum(decode.num_plain.values()) == sum(sequence.plain for sequence in decode.sequences)


def _check_calendars(scheduler: Scheduler) -> None:
    members, block_size = scheduler.decode_rows.decode_set.sequences, scheduler.kv_cache.block_size
    last = {sequence: sequence.last_step for sequence in members}
    assert scheduler.decode_rows.last_token_due.entries() == last, "the calendar of last tokens is wrong"
    blocks = {s: step for s in members if (step := s.next_block_step(block_size)) <= s.last_step}
    assert scheduler.decode_rows.block_due.entries() == blocks, "the calendar of blocks is wrong"
    assert min([*last.values(), *blocks.values()], default=scheduler.step + 1) > scheduler.step, "overdue"


def _check_speculation(scheduler: Scheduler) -> None:
    """The bounds of each speculating sequence are those of its verifications in flight."""
    rows = scheduler.speculation.rows
    assert rows == [each for each in scheduler.running if each.speculating is not None], "a speculating row is lost"
    for sequence in rows:
        bounds = bounds_of(sequence)
        own = [each for step in scheduler.in_flight for each in step.verifications if each.bounds is bounds]
        assert bounds.num_verifications == len(own), f"stream {sequence.stream_id}: verifications in flight"
        assert bounds.num_drafts == sum(each.num_drafts for each in own), f"stream {sequence.stream_id}: drafts"
        assert not sequence.joined_step, f"stream {sequence.stream_id} decodes and speculates"
        num_certain = sum(sequence in step.sequences() for step in scheduler.in_flight) - len(own)
        assert sequence.num_tokens <= bounds.base <= sequence.num_tokens + num_certain, "the certain length is wrong"
        assert bounds.longest <= sequence.token_limit, f"stream {sequence.stream_id} may exceed its limit"


def dump_state(engine: EngineCore) -> dict[str, Any]:
    """The engine as plain data: what runs, what waits, what is in flight, how many blocks each stream owns."""
    scheduler, pool, now = engine.scheduler, engine.kv_cache.pool, engine.scheduler.shares.virtual_time
    return {
        "epoch": engine.epoch,
        "worker_epoch": engine.worker_epoch,
        "step": scheduler.step,
        "draining": engine.admission.draining,
        "isolation_turn": engine.admission.core_poison.turn_number,
        "in_flight": [
            {"step": plan.step, "decode_rows": len(plan.decode), "chunks": len(plan.chunks)}
            for plan in scheduler.in_flight
        ],
        "blocks": {"total": pool.num_blocks, "free": pool.num_free, "cached": pool.num_cached},
        "kv_groups": [
            {"window": group.window, "attention_chunk": group.attention_chunk, "is_state": group.is_state}
            for group in engine.facts.kv_groups
        ],
        "tenants": [
            {"tenant": t.name, "weight": t.weight, "lead": t.service - now, "live": t.num_live, "queued": t.num_queued}
            for t in scheduler.shares.tenants.values()
        ],
        "adapters": [
            {"name": use.adapter.name, "state": use.state.name.lower(), "place": use.place, "closing": use.is_closing}
            | {"sequences": len(use.users), "held": len(use.held), "candidate": use.is_candidate}
            for use in scheduler.waiting.adapters.uses.values()
        ],
        "running": [_sequence_state(sequence) for sequence in scheduler.running],
        "waiting": [_sequence_state(sequence) for sequence in scheduler.waiting],
        "clients": {
            client.decode("ascii", "replace"): {
                "streams": len(outbox.streams),
                "credit": outbox.credit,
                "behind": outbox.is_behind,
                "unacknowledged_bytes": outbox.unacknowledged_bytes,
                "paused": client in engine.paused_clients.names,
            }
            for client, outbox in engine.clients.items()
        },
    }


def describe(engine: EngineCore | None) -> bytes:
    """The state and the audit's result as JSON, with the first thousand running and waiting sequences."""
    if engine is None:
        return b"{}"
    state = dump_state(engine)
    for name in ("running", "waiting"):
        state[f"num_{name}"] = len(state[name])
        state[name] = state[name][:1000]
    try:
        check_invariants(engine)
        state["audit"] = ""
    except AssertionError as error:
        state["audit"] = str(error) or "an invariant is broken"
    encoded = msgspec.json.encode(state)
    return encoded if len(encoded) <= MAX_DESCRIPTION_BYTES else b"{}"


def _sequence_state(sequence: Sequence) -> dict[str, Any]:
    tables = zip(sequence.block_tables, sequence.num_released, strict=True)
    blocks = [len(table) - num_released for table, num_released in tables]
    return {
        "stream": sequence.stream_id,
        "state": sequence.state.name.lower(),
        "order": sequence.order,
        "row": sequence.row,
        "prompt_tokens": sequence.request.prompt_len,
        "output_tokens": len(sequence.output),
        "token_limit": sequence.token_limit,
        "blocks": sum(blocks),
        "blocks_by_group": blocks,
        "decoding": bool(sequence.joined_step),
        "speculating": sequence.speculating is not None,
        "preemptions": sequence.num_preemptions,
    }
