"""The core's process without its sockets: engine, client link and worker link, driven as in engine_process.py."""

import random
from collections import deque

from paged_serve.engine_core.engine.debug import check_invariants
from paged_serve.engine_core.engine.engine import EngineCore
from paged_serve.engine_core.engine.outputs import Outgoing
from paged_serve.engine_core.process.client_link import ClientLink
from paged_serve.engine_core.process.loop_clock import LoopClock
from paged_serve.engine_core.requests.request import Sequence
from paged_serve.engine_core.simulation.correct_results import extend_hash, pooling_mark
from paged_serve.engine_core.simulation.fake_workers.fake_group import FakeGroup
from paged_serve.engine_core.simulation.fake_workers.fake_worker import WorkerDied
from paged_serve.engine_core.simulation.links import SimulatedSockets, SimulatedWorkerLink, TickingClock
from paged_serve.engine_core.simulation.scenarios.scenario import Scenario
from paged_serve.protocol.messages.engine_core import CoreFailure, EngineCoreRequest, FromEngineCore, ToEngineCore
from paged_serve.protocol.messages.message import unpack_ids

HEARTBEAT_S = 0.25
STEP_DEADLINE_S = 8.0
MEAN_TICK_S = 0.02


class CoreDied(BaseException):
    """A request crashed the core; not an Exception, because nothing in the core may handle it."""


def seed_of(sequence: Sequence) -> int:
    """The number that decides which sequences crash processes. For a vector it depends only on the prompt."""
    if sequence.request.pooling is None:
        return sequence.seed
    prefix = 0
    for token in unpack_ids(sequence.request.prompt):
        prefix = extend_hash(prefix, token)
    return pooling_mark(prefix)


class WatchedEngine(EngineCore):
    """Records the requests that it accepts, and crashes on poison requests."""

    def __init__(self, scenario: Scenario, epoch: int, poison: int):
        super().__init__(scenario.config, scenario.facts, epoch)
        scenario.set_up(self.scheduler, epoch)
        self.taken: deque[tuple[bytes, EngineCoreRequest, list[int]]] = deque()  # and the seeds
        self.salts: dict[tuple[bytes, int], str] = {}
        self._poison = poison

    def add_request(self, client: bytes, message: EngineCoreRequest, now: float) -> Outgoing:
        self.salts[client, message.request_id] = message.cache_salt
        outgoing = super().add_request(client, message, now)
        streams = self.clients[client].streams
        ids = range(message.request_id, message.request_id + message.sampling_params.n)
        if all(stream_id in streams for stream_id in ids):  # one that ended at once was reported by another core
            self.taken.append((client, message, [seed_of(streams[stream_id]) for stream_id in ids]))
        self.die_of(streams.get(message.request_id), 0)
        return outgoing

    def die_of(self, sequence: Sequence | None, num_tokens: int) -> None:
        if sequence is not None and core_dies_of(self._poison, seed_of(sequence), num_tokens):
            raise CoreDied


class CoreHost:
    """One incarnation of the core with its worker group. The world passes the time."""

    def __init__(
        self,
        scenario: Scenario,
        epoch: int,
        rng: random.Random,
        now: float,
        poison: int = 0,
        failures: tuple[CoreFailure, ...] = (),
    ):
        """`poison`: as in `core_dies_of`. `failures`: how former cores ended, as the supervisor reports it."""
        self.scenario = scenario
        self.engine = WatchedEngine(scenario, epoch, poison)
        self._rng = rng
        self._busy_until = now  # while the workers start or one of them hangs
        self._hangs_since: float | None = None
        self._next_heartbeat = now
        self._sent: list[tuple[bytes, FromEngineCore]] = []
        self._full: set[bytes] = set()  # clients whose queue is full
        self._ports = SimulatedSockets(self._deliver)
        self._clock = LoopClock(now)
        self._client_link = ClientLink(self._ports, failures, TickingClock())
        self._client_link.open(self.engine, now)
        self._link = SimulatedWorkerLink(scenario.facts.num_blocks, scenario.facts.vocab_size)
        self._group = self._start_group(0, now)
        self.recorded_turn = 0  # the isolation turn that the supervisor would attribute this core's end to

    @property
    def taken(self) -> deque[tuple[bytes, EngineCoreRequest, list[int]]]:
        return self.engine.taken

    def receive(self, client: bytes, message: ToEngineCore, now: float) -> list[tuple[bytes, FromEngineCore]]:
        self._ports.to_core.append((client, message))
        self._client_link.receive(now)
        return self._take_sent()

    def iterate(self, now: float) -> list[tuple[bytes, FromEngineCore]]:
        """One iteration of the loop without a message: steps, their results, heartbeats, leases, deadlines."""
        rng, engine, client_link = self._rng, self.engine, self._client_link
        client_link.extend_leases(self._clock.begin_iteration(now, MEAN_TICK_S))
        if self._hangs_since is not None and now - self._hangs_since > STEP_DEADLINE_S:
            self._replace_workers(now, from_outside=True)
        if rng.random() < 0.5:  # the report and its confirmation take time
            self.recorded_turn = engine.admission.core_poison.turn_number
            engine.admission.core_poison.record(self.recorded_turn)
        client_link.advance_isolation(now)
        if now >= self._busy_until and rng.random() < 0.9:
            self._group.plan(engine, now)
        if self._group.has_work and self._hangs_since is None and rng.random() < 0.9:
            try:
                self._group.execute()
            except WorkerDied:
                self._replace_workers(now, from_outside=False)
        if self._group.answers and rng.random() < 0.9:
            for answer in self._group.answer(now):
                client_link.send(engine.apply(answer, now), now)
                self._group.check_poison(engine, answer.step)
            for sequence in engine.scheduler.running:
                engine.die_of(sequence, len(sequence.output))
        client_link.expire(now)
        check_invariants(engine)
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + HEARTBEAT_S
            client_link.heartbeat(engine, now, computes=True)
            check_invariants(engine)
        return self._take_sent()

    def _take_sent(self) -> list[tuple[bytes, FromEngineCore]]:
        check_invariants(self.engine)
        assert not self._client_link.num_failed, "the core itself failed on a message; the log has the traceback"
        sent, self._sent = self._sent, []
        return sent

    def _deliver(self, client: bytes, message: FromEngineCore) -> bool:
        if client in self._full:
            return False
        self._sent.append((client, message))
        return True

    def hang_workers(self, now: float) -> None:
        """The workers answer nothing until the step's deadline."""
        if self._hangs_since is None:
            self._hangs_since = now

    def spoil_a_slot(self) -> None:
        facts = self.scenario.facts
        self._group.spoil(self._rng.randrange(facts.num_blocks), self._rng.randrange(facts.block_size))

    def replace_workers(self, now: float) -> list[tuple[bytes, FromEngineCore]]:
        """Replace the workers, which are dead or are killed now."""
        self._replace_workers(now, from_outside=True)
        return self._take_sent()

    def _replace_workers(self, now: float, *, from_outside: bool) -> None:
        epoch = self.engine.worker_epoch + 1
        self._link.link.replace(epoch, from_outside)
        late = self._group
        from_outside = self._link.link.take_from_outside()
        self._client_link.send(self.engine.workers_replaced(epoch, now, from_outside=from_outside), now)
        while late.answers:
            assert late.answer(now) == [], "an answer of dead workers was accepted"
        self._group = self._start_group(epoch, now)
        self._hangs_since = None
        self._busy_until = now + self._rng.random()
        check_invariants(self.engine)

    def remove(self, client: bytes, now: float) -> None:
        """Remove a client whose queue is full."""
        self._full.add(client)
        self._client_link.send_heartbeat(self.engine, [client], now, computes=True)
        self._full.discard(client)
        assert client not in self.engine.clients
        check_invariants(self.engine)

    def check_all_free(self) -> None:
        pool = self.engine.kv_cache.pool
        assert self.engine.scheduler.num_live == 0, "a sequence without a reader is live"
        assert pool.num_free == pool.num_blocks, "blocks are still owned although no sequence is live"

    def _start_group(self, epoch: int, now: float) -> FakeGroup:
        return FakeGroup(self.scenario, epoch, self.engine.salts, lambda: False, self._link, now)


def core_dies_of(poison: int, seed: int, num_tokens: int) -> bool:
    """Whether a sequence with `num_tokens` tokens crashes the core: its seed is a multiple of `poison`, and the seed
    determines at how many tokens; at 0, its acceptance crashes the core."""
    return poison > 0 and seed % poison == 0 and num_tokens == seed % 4
