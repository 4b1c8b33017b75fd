"""The core of a simulation: the engine with its links, and the fake worker group that computes for it."""

import random
from collections.abc import Iterable

from paged_serve.protocol.messages.engine_core import ToEngineCore
from paged_serve.protocol.messages.handshake import handshake_hello
from paged_serve.protocol.messages.loading.kv_tiers import BlocksMoved
from paged_serve.protocol.messages.loading.startup import KVCacheReady
from paged_serve.protocol.messages.worker import ModelRunnerOutput

from ..engine.debug import check_invariants
from ..engine.engine import EngineCore
from ..process.client_link import ClientLink
from ..process.loop_clock import LoopClock
from ..process.tier_link import take_tier_messages, tier_answered
from .event_follower import EventFollower
from .fake_workers.fake_group import FakeGroup
from .fake_workers.fake_tier import FakeTier
from .fake_workers.worker_died import WorkerDied
from .links import SimulatedLinks, SimulatedWorkerLink, TickingClock
from .outcomes import Outcomes
from .scenarios.scenario import Scenario, happens

TICK_S = 0.02


class SimulatedCore:
    """Every change is followed by an audit. The caller passes the time, and `links` carry messages to the clients."""

    def __init__(self, scenario: Scenario, links: SimulatedLinks, outcomes: Outcomes, rng: random.Random):
        self.stalled_ticks = 0  # until the workers continue their step
        self.salts: dict[tuple[bytes, int], str] = {}  # by client and request id
        self._scenario = scenario
        self._links = links
        self._outcomes = outcomes
        self._rng = rng
        self._starting_ticks = 0  # until the new workers take steps
        self._clock = LoopClock(0.0)
        num_ranks, has_tier = scenario.config.parallel.tensor_parallel_size, scenario.config.kv_tier.is_on
        self.tier = FakeTier(random.Random(f"tiers of {scenario.seed}"), num_ranks) if has_tier else None
        has_events = bool(scenario.config.kv_events.endpoint)
        events_rng = random.Random(f"events of {scenario.seed}")
        self.follower = EventFollower(events_rng, events_rng.choice((1, 5, 100))) if has_events else None

    def start(self, epoch: int, clients: Iterable[bytes], now: float) -> None:
        facts = self._scenario.facts
        if self.tier is not None:
            self.tier.restart()
        self.engine = EngineCore(self._scenario.config, facts, epoch)
        self._scenario.set_up(self.engine.scheduler, epoch)
        if self.follower is not None:
            self.follower.follow(self.engine)
        self._worker_link = SimulatedWorkerLink(facts.num_blocks, facts.vocab_size)
        self._client_link = ClientLink(self._links, (), TickingClock())
        self._client_link.open(self.engine, now)
        for client in clients:
            self.receive(client, handshake_hello("client", 0, 0), now)
            self.engine.clients[client].credit = self._scenario.client_credit
        self.group = self._start_group(0, now)

    def restart(self, clients: Iterable[bytes], now: float) -> None:
        """Replace the core: everything in it and in flight is lost."""
        self.count()
        self.start(self.engine.epoch + 1, clients, now)
        self._outcomes.core_deaths += 1

    def receive(self, client: bytes, message: ToEngineCore, now: float) -> None:
        self._links.to_core.append((client, message))
        self._client_link.receive(now)
        assert not self._links.to_core, "one message was not processed in one iteration"
        assert not self._client_link.num_failed, "the core itself failed on a message; the log has the traceback"

    def begin_iteration(self, now: float) -> None:
        self._client_link.extend_leases(self._clock.begin_iteration(now, TICK_S))

    def advance(self, now: float) -> None:
        """Plan a step, compute one and apply one, each with some probability."""
        rng = self._rng
        self._finish_load(now)
        if self._starting_ticks:
            self._starting_ticks -= 1
        else:
            self.group.load_adapters(self.engine, now)
            if rng.random() < 0.9 and (plan := self.group.plan(self.engine, now)) is not None:
                self._links.record(plan)
                if rng.random() < 0.5:
                    check_invariants(self.engine)
        if self.stalled_ticks:
            self.stalled_ticks -= 1
        elif self.group.has_work and rng.random() < 0.9:
            try:
                self._outcomes.nans += self.group.execute()
            except WorkerDied:
                self._outcomes.crashes += 1
                self.kill_workers(now, from_outside=False)
        if self.group.answers and rng.random() < 0.9:
            self._apply(now)
        if self.tier is not None:
            self._advance_tier(self.tier, now)
        if self.follower is not None:
            self.follower.advance(self.engine)

    def _finish_load(self, now: float) -> None:
        try:
            loaded = self.group.places.finish_one()
        except WorkerDied:
            self._outcomes.load_crashes += 1
            self.kill_workers(now, from_outside=False)
            return
        if loaded is not None:
            assert self.group.send_to_core(loaded, now) == [loaded], "the answer to a load was not accepted"
            self._client_link.send(self.engine.adapter_loaded(loaded, 1, now), now)
            check_invariants(self.engine)

    def heartbeat(self, now: float) -> None:
        self._client_link.heartbeat(self.engine, now, computes=True)
        check_invariants(self.engine)

    def expire(self, now: float) -> None:
        before = self._links.num_expired
        self._client_link.expire(now)
        if self._links.num_expired > before:
            self._outcomes.expired += self._links.num_expired - before
            check_invariants(self.engine)

    def drop_client(self, name: bytes, now: float) -> None:
        """A send to the client fails."""
        self._links.full.add(name)
        self._client_link.send_heartbeat(self.engine, [name], now, computes=True)
        assert name not in self.engine.clients, "a client that accepts no message was not removed"
        check_invariants(self.engine)

    def kill_workers(self, now: float, *, from_outside: bool) -> None:
        epoch = self.engine.worker_epoch + 1
        self._worker_link.link.replace(epoch, from_outside)
        from_outside = self._worker_link.link.take_from_outside()
        self._client_link.send(self.engine.workers_replaced(epoch, now, from_outside=from_outside), now)
        check_invariants(self.engine)
        while self.group.answers:
            assert self.group.answer(now) == [], "an answer of dead workers was accepted"
        if self.tier is not None:
            self.tier.restart()
        self._outcomes.passes += self.group.num_passes
        self._outcomes.loads += self.group.places.num_loaded
        self._outcomes.copies += self.group.num_copies
        self.group = self._start_group(epoch, now)
        self._starting_ticks = self._rng.randint(0, 5)
        self._outcomes.worker_deaths += 1

    def count(self) -> None:
        """Add this core's counters to the outcomes."""
        self._outcomes.preemptions += self.engine.scheduler.num_preemptions
        self._outcomes.cached_tokens += self.engine.counters.prefix_cache_hits
        self._outcomes.draft_tokens += self.engine.counters.draft_tokens
        self._outcomes.accepted_tokens += self.engine.counters.accepted_tokens

    def _apply(self, now: float) -> None:
        [answer] = self.group.answer(now)
        assert isinstance(answer, ModelRunnerOutput), "a step was answered with something else"
        paused = set(self.engine.paused_clients.names)
        self._client_link.send(self.engine.apply(answer, now), now)
        self._outcomes.paused += len(self.engine.paused_clients.names - paused)
        check_invariants(self.engine)
        self.group.check_poison(self.engine, answer.step)
        self._outcomes.steps += 1
        self._outcomes.steps_behind += any(outbox.is_behind for outbox in self.engine.clients.values())
        if happens(self._rng, self._scenario.broken_worker):
            self._break_worker(answer, now)

    def _break_worker(self, answer: ModelRunnerOutput, now: float) -> None:
        """A message sent twice ends the worker group, and nothing else."""
        wrong = self._rng.choice((answer, KVCacheReady(0), self._worker_link.ready))
        assert self.group.send_to_core(wrong, now) == [], "a message that a worker repeated was accepted"
        assert not self._worker_link.link.is_ready, "a worker that violates the protocol was not detected"
        self.kill_workers(now, from_outside=True)
        self._outcomes.broken_workers += 1

    @property
    def tier_counts(self) -> dict[str, int]:
        return {} if self.tier is None else self.tier.counts

    @property
    def is_idle(self) -> bool:
        is_tier_idle = self.tier is None or self.tier.is_idle
        return self.group.is_idle and is_tier_idle and not self.engine.kv_cache.has_transfers

    def _advance_tier(self, tier: FakeTier, now: float) -> None:
        if not self._starting_ticks:
            for message in take_tier_messages(self.engine, now):
                self._links.record(message)
                tier.receive(message, self.engine.scheduler.step)
        for answer in tier.advance(self.group.worker, self.group.next_step):
            tier_answered(self.engine, answer, now)
            if isinstance(answer, BlocksMoved):
                check_invariants(self.engine)

    def _start_group(self, epoch: int, now: float) -> FakeGroup:
        return FakeGroup(self._scenario, epoch, self.salts, self._is_nan, self._worker_link, now)

    def _is_nan(self) -> bool:
        return happens(self._rng, self._scenario.nan)
