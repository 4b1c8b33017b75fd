"""The engine core's process without its sockets: the same engine, led as engine_core/process.py leads it."""

import random
from collections import deque
from collections.abc import Iterator
from typing import assert_never

from paged_serve.engine_core.debug import check_invariants
from paged_serve.engine_core.engine import EngineCore
from paged_serve.engine_core.request import Sequence
from paged_serve.engine_core.simulation.fake_group import FakeGroup
from paged_serve.engine_core.simulation.fake_worker import WorkerDied
from paged_serve.engine_core.simulation.scenario import Scenario
from paged_serve.engine_core.welcome import welcome
from paged_serve.protocol.engine_core import (
    AbortRequests,
    ClientHeartbeat,
    CoreFailure,
    EngineCoreRequest,
    EngineHeartbeat,
    FromEngineCore,
    OutputsReceived,
    SuspectsHeld,
    SuspectsTurn,
    ToEngineCore,
    UtilityCall,
)
from paged_serve.protocol.message import Hello

BEAT_S = 0.25
STEP_DEADLINE_S = 8.0

Outgoing = Iterator[tuple[bytes, FromEngineCore]]


class CoreDied(Exception):
    """Of a request."""


class CoreHost:
    """One incarnation of the core with its worker group. Times are the world's."""

    def __init__(
        self,
        scenario: Scenario,
        epoch: int,
        rng: random.Random,
        now: float,
        poison: int = 0,
        failures: tuple[CoreFailure, ...] = (),
    ):
        """`poison`: as `core_dies_of` has it. `failures`: how former cores ended, as the supervisor tells."""
        self.scenario = scenario
        self._poison = poison
        self.taken: deque[tuple[bytes, EngineCoreRequest, list[int]]] = deque()  # by the engine, and the seeds
        self._failures = failures
        self.engine = EngineCore(scenario.config, scenario.facts, epoch, scenario.num_groups)
        self.engine.scheduler.max_passes = scenario.max_passes
        self._rng = rng
        self._busy_until = now  # the workers start, or one of them hangs
        self._hangs_since: float | None = None
        self._next_beat = now
        self._told: set[bytes] = set()
        self._salts: dict[tuple[bytes, int], str] = {}
        self._group = self._start_group(0)

    def receive(self, client: bytes, message: ToEngineCore, now: float) -> Outgoing:
        engine = self.engine
        if isinstance(message, Hello):
            known = client in engine.clients
            engine.add_client(client, now)
            engine.heard_from(client, now)
            yield client, welcome(engine, known, self._failures)
            return
        if client in engine.clients:
            yield from self._take_in(client, message, now)

    def _take_in(self, client: bytes, message: ToEngineCore, now: float) -> Outgoing:
        engine = self.engine
        engine.heard_from(client, now)
        match message:
            case EngineCoreRequest():
                self._salts[client, message.request_id] = message.cache_salt
                yield from engine.add_request(client, message, now)
                streams = engine.clients[client].streams
                ids = range(message.request_id, message.request_id + message.sampling_params.n)
                if all(stream_id in streams for stream_id in ids):  # of one that ended at once, another core has told
                    self.taken.append((client, message, [streams[stream_id].seed for stream_id in ids]))
                self._die_of(streams.get(message.request_id), 0)
            case AbortRequests():
                yield from engine.abort(client, message, now)
            case OutputsReceived(frames=frames):
                yield from engine.outputs_received(client, frames)
            case SuspectsHeld(count=count):
                engine.trials.suspects_held(client, count)
            case ClientHeartbeat() | UtilityCall():
                pass
            case _:
                assert_never(message)
        check_invariants(engine)

    def turn(self, now: float) -> Outgoing:
        """What the loop does without being spoken to: steps, their answers, heartbeats, leases, deadlines."""
        rng, engine = self._rng, self.engine
        if self._hangs_since is not None and now - self._hangs_since > STEP_DEADLINE_S:
            yield from self.replace_workers(now)
        for client, message in engine.trials.take_kept(now):
            if client in engine.clients:
                yield from self._take_in(client, message, now)
        if not engine.scheduler.in_flight and (holder := engine.trials.next_turn(now)) is not None:
            yield holder, SuspectsTurn(engine.epoch, engine.trials.turn)
        if now >= self._busy_until and rng.random() < 0.9:
            self._group.plan(engine, now)
        if self._group.has_work and self._hangs_since is None and rng.random() < 0.9:
            try:
                self._group.execute()
            except WorkerDied:
                yield from self.replace_workers(now, from_outside=False)
        if self._group.answers and rng.random() < 0.9:
            answer = self._group.answers.popleft()
            yield from engine.apply(answer, now)
            self._group.check_poison(engine, answer.step)
            for sequence in engine.scheduler.running:
                self._die_of(sequence, len(sequence.output))
        yield from engine.expire(now)
        check_invariants(engine)
        for client in engine.expired_clients(now):
            engine.remove_client(client, now)
            check_invariants(engine)
        if now >= self._next_beat:
            self._next_beat = now + BEAT_S
            for client in engine.clients:
                yield client, EngineHeartbeat(engine.scheduler.step)

    def hang_workers(self, now: float) -> None:
        """They answer nothing more until the step's deadline."""
        if self._hangs_since is None:
            self._hangs_since = now

    def spoil_a_slot(self) -> None:
        facts = self.scenario.facts
        self._group.spoil(
            self._rng.randrange(facts.num_blocks), self._rng.randrange(self.scenario.config.cache.block_size)
        )

    def replace_workers(self, now: float, *, from_outside: bool = True) -> Outgoing:
        """They are dead, or are killed now."""
        late = self._group.answers
        yield from self.engine.workers_replaced(self.engine.worker_epoch + 1, now, from_outside=from_outside)
        for answer in late:
            assert self.engine.apply(answer, now) == [], "an answer of dead workers counts"
        self._group = self._start_group(self.engine.worker_epoch)
        self._hangs_since = None
        self._busy_until = now + self._rng.random()
        check_invariants(self.engine)

    def forget(self, client: bytes, now: float) -> None:
        """As after a send that its queue did not take."""
        self.engine.remove_client(client, now)
        check_invariants(self.engine)

    def check_all_free(self) -> None:
        pool = self.engine.kv_cache.pool
        assert self.engine.scheduler.num_live == 0, "a sequence lives on that nobody waits for"
        assert pool.num_free == pool.num_blocks, "blocks are still owned though nobody lives"

    def _start_group(self, epoch: int) -> FakeGroup:
        return FakeGroup(self.scenario, epoch, self._salts, lambda: False)

    def _die_of(self, sequence: Sequence | None, num_tokens: int) -> None:
        if sequence is not None and core_dies_of(self._poison, sequence.seed, num_tokens):
            raise CoreDied


def core_dies_of(poison: int, seed: int, num_tokens: int) -> bool:
    """Of every multiple of `poison` when the sequence has a certain number of tokens; at none: when it is taken in."""
    return poison > 0 and seed % poison == 0 and num_tokens == seed % 4
