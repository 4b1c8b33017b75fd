"""Runs one scenario: the engine under a virtual clock, with faults drawn from the seed.

Oracle: every stream equals the output of its request alone, is delivered in order and ends once; the engine's
invariants hold after every step; everything ends; the same seed leaves the same trace.
"""

import random

import msgspec

from paged_serve.protocol.messages.engine_core import (
    AbortRequests,
    ClientHeartbeat,
    EngineCoreRequest,
    OutputsReceived,
    RejectReason,
    RequestRejected,
    ToEngineCore,
)
from paged_serve.protocol.messages.handshake import handshake_hello
from paged_serve.protocol.messages.sampling_params import FinishReason
from paged_serve.protocol.messages.worker import KVCacheReady, ModelRunnerOutput

from ..engine.debug import check_invariants
from ..engine.engine import CLIENT_LEASE_S, EngineCore
from ..process.client_link import ClientLink
from ..process.loop_clock import LoopClock
from .client import SimulatedClient
from .fake_group import FakeGroup
from .fake_worker import WorkerDied
from .links import SimulatedWorkerLink, TickingClock
from .outcomes import Outcomes
from .post import SimulatedLinks
from .scenario import Scenario, draw_request, draw_scenario

MAX_TICKS = 200_000
TICK_S = 0.02


class Simulation:
    """`run` returns once everything was delivered; an AssertionError names what went wrong."""

    def __init__(self, scenario: Scenario):
        self.scenario = scenario
        self.outcomes = Outcomes()
        self.now = 0.0
        self._rng = random.Random(scenario.seed)
        self._clients = [SimulatedClient(b"client:%d" % i, scenario) for i in range(scenario.num_clients)]
        self.post = SimulatedLinks(self._clients, scenario.client_credit)
        self._num_submitted = 0
        self._pause = 0  # ticks until the workers are back
        self._nap = 0  # ticks until they go on with their step
        self._late_aborts: list[tuple[SimulatedClient, AbortRequests]] = []
        self._salts: dict[tuple[bytes, int], str] = {}
        self._retries: dict[int, SimulatedClient] = {}  # request ids that the core must still take back
        self._clock = LoopClock(self.now)
        self._engine = self._start_core(epoch=0)
        self._group = self._start_group(0)

    def run(self) -> Outcomes:
        for _ in range(MAX_TICKS):
            if self._tick():
                self._finish()
                return self.outcomes
        raise AssertionError(f"seed {self.scenario.seed}: not all has ended after {MAX_TICKS} ticks")

    def _tick(self) -> bool:
        """A moment in which each party may act once; True when there is nothing left to do."""
        rng = self._rng
        self.now += rng.random() * 2 * TICK_S
        self._let_faults_happen()
        self._client_link.excuse(self._clock.begin_iteration(self.now, TICK_S))
        if rng.random() < 0.1:
            self._beat()
        if self._num_submitted < self.scenario.num_requests and rng.random() < 0.3:
            self._submit()
        self._expire()
        if self._pause:
            self._pause -= 1
        elif rng.random() < 0.9 and (plan := self._group.plan(self._engine, self.now)) is not None:
            self.post.record(plan)
            if rng.random() < 0.5:
                check_invariants(self._engine)
        if self._nap:
            self._nap -= 1
        elif self._group.has_work and rng.random() < 0.9:
            try:
                self.outcomes.nans += self._group.execute()
            except WorkerDied:
                self.outcomes.crashes += 1
                self._kill_workers(from_outside=False)
        if self._group.answers and rng.random() < 0.9:
            self._apply()
        self._let_clients_act()
        return self._is_over()

    def _apply(self) -> None:
        [answer] = self._group.answer(self.now)
        paused = set(self._engine.paused_clients.names)
        self._client_link.send(self._engine.apply(answer, self.now), self.now)
        self.outcomes.paused += len(self._engine.paused_clients.names - paused)
        check_invariants(self._engine)
        self._group.check_poison(self._engine, answer.step)
        self.outcomes.steps += 1
        self.outcomes.steps_behind += any(outbox.is_behind for outbox in self._engine.clients.values())
        if self._happens(self.scenario.broken_worker):
            self._let_worker_break(answer)

    def _let_worker_break(self, answer: ModelRunnerOutput) -> None:
        """A message sent twice ends the worker group, and nothing else."""
        wrong = self._rng.choice((answer, KVCacheReady(0), self._worker_link.ready))
        assert self._group.send_to_core(wrong, self.now) == [], "a message that a worker repeats counts"
        assert not self._worker_link.link.is_ready, "a worker that breaks the protocol is not noticed"
        self._kill_workers(from_outside=True)
        self.outcomes.broken_workers += 1

    def _is_over(self) -> bool:
        if self._num_submitted < self.scenario.num_requests or self._engine.scheduler.num_live or self._retries:
            return False
        return self._group.is_idle and not any(client.inbox for client in self._speaking())

    def _finish(self) -> None:
        pool = self._engine.kv_cache.pool
        assert pool.num_free == pool.num_blocks, "blocks are still owned though nothing lives"
        for client in self._speaking():
            assert not client.unfinished(), f"streams {client.unfinished()} never ended"
        streams = [stream for client in self._clients for stream in client.streams.values()]
        self.outcomes.streams = len(streams)
        self.outcomes.tokens = sum(len(stream.received) for stream in streams)
        self.outcomes.vectors = sum(client.num_vectors for client in self._clients)
        self.outcomes.errors = sum(client.num_errors for client in self._clients)
        self.outcomes.poisoned = sum(client.num_poisoned for client in self._clients)
        assert 2 * self.outcomes.errors <= self.outcomes.nans, "a stream failed without two bad results"
        num_deadly = sum(stream.seed == self.scenario.poison for stream in streams) * (1 + self.outcomes.core_deaths)
        assert self.outcomes.crashes <= 2 * num_deadly, "one request has killed three worker groups"
        self._count_core()
        self.outcomes.passes += self._group.num_passes

    def _speaking(self) -> list[SimulatedClient]:
        return [client for client in self._clients if not client.is_silent]

    # Clients

    def _submit(self) -> None:
        if not (clients := self._speaking()):
            self._num_submitted = self.scenario.num_requests
            return
        rng = self._rng
        client = rng.choice(clients)
        self._num_submitted += 1
        request = draw_request(rng, self.scenario, self._num_submitted * 1000, 40 * TICK_S)
        self._ask(client, client.next_turn(request, rng) if rng.random() < 0.2 else request)

    def _ask(self, client: SimulatedClient, request: EngineCoreRequest) -> None:
        self._salts[client.name, request.request_id] = request.cache_salt
        self._say(client, request)
        accepted = self._engine.clients[client.name].running(request)
        if accepted is None:
            rejected = client.inbox.pop()
            assert isinstance(rejected, RequestRejected), "an accepted request vanished"
            assert rejected.reason is RejectReason.OVERLOADED or "KV blocks" in rejected.message, rejected
            self.outcomes.overloads += 1
            return
        client.submitted(request, self.now, [sequence.seed for sequence in accepted.sequences])
        self.outcomes.reused += any(sequence.output for sequence in accepted.sequences)
        if self._happens(self.scenario.duplicate):
            self.outcomes.duplicates += 1
            before = self._engine.scheduler.num_live, len(client.inbox)
            self._say(client, request)
            assert (self._engine.scheduler.num_live, len(client.inbox)) == before, "a request that comes twice counts"

    def _say(self, client: SimulatedClient, message: ToEngineCore) -> None:
        self.post.to_core.append((client.name, message))
        self._client_link.receive(self.now)
        assert not self.post.to_core, "one message is no turn's work"
        assert not self._client_link.num_failed, "a message failed by the core's own fault; the log has it"

    def _let_clients_act(self) -> None:
        rng = self._rng
        for client in self._speaking():
            self._say(client, ClientHeartbeat())
            while client.inbox and rng.random() < self.scenario.client_pace:
                self._say(client, OutputsReceived(client.take()))
            unfinished = [stream for stream in client.unfinished() if stream // 1000 * 1000 not in self._retries]
            if rng.random() < self.scenario.abort and unfinished:
                victims = rng.sample(unfinished, rng.randint(1, min(3, len(unfinished))))
                self._abort(client, victims, rng.choice((FinishReason.ABORT, FinishReason.STOP)))
        self._let_late_aborts_come()
        for request_id, client in list(self._retries.items()):
            if rng.random() < 0.2:
                self._retry(client, request_id)

    def _beat(self) -> None:
        """Clients that have been silent for too long are given up, no others."""
        self._client_link.beat(self._engine, self.now, computes=True)
        for client in self._speaking():
            assert client.name in self._engine.clients, "a living client is accused of silence"
        check_invariants(self._engine)

    def _abort(self, client: SimulatedClient, stream_ids: list[int], reason: FinishReason) -> None:
        for stream_id in stream_ids:
            stream = client.streams[stream_id]
            stream.abort_reason = reason if stream.abort_reason is None else stream.abort_reason
        message = AbortRequests((*stream_ids, 7), reason)  # 7 is no stream's
        reasons = {client.streams[stream_id].abort_reason for stream_id in stream_ids}
        if reasons == {reason} and self._happens(0.3):
            self._late_aborts.append((client, message))
        elif reasons == {reason}:
            self._say(client, message)
            check_invariants(self._engine)
            self.outcomes.aborts += 1

    def _let_late_aborts_come(self) -> None:
        """Some of their streams have ended meanwhile."""
        while self._late_aborts and self._rng.random() < 0.3:
            client, message = self._late_aborts.pop(0)
            if not client.is_silent:
                self._say(client, message)
                self.outcomes.late_aborts += 1

    def _expire(self) -> None:
        before = self.post.num_expired
        self._client_link.expire(self.now)
        if self.post.num_expired > before:
            self.outcomes.expired += self.post.num_expired - before
            check_invariants(self._engine)

    # Faults

    def _let_faults_happen(self) -> None:
        rng, scenario = self._rng, self.scenario
        if rng.random() < scenario.worker_death:
            self._kill_workers(from_outside=True)
        if rng.random() < scenario.core_death:
            self._kill_core()
        if rng.random() < scenario.silence and len(clients := self._speaking()) > 1:
            self._lose(max(clients, key=lambda client: client.num_at_stake))
        if self._happens(scenario.spoil):
            facts = scenario.facts
            self._group.spoil(rng.randrange(facts.num_blocks), rng.randrange(scenario.config.cache.block_size))
            self.outcomes.spoiled += 1
        if self._happens(scenario.slow_step):
            self._nap = rng.randint(1, 60)
            self.outcomes.slow_steps += 1
        if self._happens(scenario.clock_jump):
            seconds = rng.uniform(0.0, 60.0)
            self.now += seconds
            self.outcomes.clock_jumps += 1
            self._client_link.excuse(self._clock.begin_iteration(self.now, TICK_S))
            self._beat()  # before any client was heard
            self.outcomes.halts += seconds > CLIENT_LEASE_S

    def _lose(self, lost: SimulatedClient) -> None:
        """Either its lease must end, or a send to it fails; its requests are asked again of another client."""
        lost.is_silent = True
        self.outcomes.silent_clients += 1
        if self._rng.random() < 0.2:
            return
        self._remove(lost.name)
        for request in lost.asked_again(self._rng, self.now):
            if clients := self._speaking():
                self._num_submitted += 1
                again = msgspec.structs.replace(request, request_id=self._num_submitted * 1000)
                self._ask(self._rng.choice(clients), again)

    def _remove(self, name: bytes) -> None:
        self.post.full.add(name)
        self._client_link.send_heartbeat(self._engine, [name], self.now, computes=True)
        assert name not in self._engine.clients, "a client that takes nothing keeps its place"
        check_invariants(self._engine)

    def _happens(self, chance: float) -> bool:
        return chance > 0.0 and self._rng.random() < chance

    def _kill_workers(self, *, from_outside: bool) -> None:
        epoch = self._engine.worker_epoch + 1
        self._worker_link.link.replace(epoch, from_outside)
        from_outside = self._worker_link.link.take_from_outside()
        self._client_link.send(self._engine.workers_replaced(epoch, self.now, from_outside=from_outside), self.now)
        check_invariants(self._engine)
        while self._group.answers:
            assert self._group.answer(self.now) == [], "an answer of dead workers counts"
        self.outcomes.passes += self._group.num_passes
        self._group = self._start_group(epoch)
        self._pause = self._rng.randint(0, 5)
        self.outcomes.worker_deaths += 1

    def _kill_core(self) -> None:
        """Everything in the core and on its way is lost; the clients ask again for what they miss."""
        self._count_core()
        self._late_aborts.clear()
        self._retries.clear()
        self._engine = self._start_core(self._engine.epoch + 1)
        self._group = self._start_group(0)
        self.outcomes.core_deaths += 1
        for client in self._speaking():
            client.inbox.clear()
            client.epoch = self._engine.epoch
            for request in client.unfinished_requests(self.now):
                self._resume(client, request)
        check_invariants(self._engine)

    def _retry(self, client: SimulatedClient, request_id: int) -> None:
        del self._retries[request_id]
        for request in client.unfinished_requests(self.now) if not client.is_silent else ():
            if request.request_id == request_id:
                self._resume(client, request)

    def _resume(self, client: SimulatedClient, request: EngineCoreRequest) -> None:
        self._say(client, request)
        last = client.inbox[-1] if client.inbox else None
        if isinstance(last, RequestRejected) and last.reason is RejectReason.OVERLOADED:
            client.inbox.pop()
            self._retries[request.request_id] = client  # it was accepted once, so it waits instead of failing
            self.outcomes.retries += 1
            return
        siblings = [request.request_id + index for index in range(request.sampling_params.n)]
        for reason in (FinishReason.ABORT, FinishReason.STOP):
            over = [
                stream_id
                for stream_id in siblings
                if client.streams[stream_id].finish_reason is not None
                or client.streams[stream_id].abort_reason is reason
            ]
            if over:
                self._say(client, AbortRequests(tuple(over), reason))

    def _start_core(self, epoch: int) -> EngineCore:
        engine = EngineCore(self.scenario.config, self.scenario.facts, epoch)
        engine.scheduler.row_assigner.max_passes = self.scenario.max_passes
        facts = self.scenario.facts
        self._worker_link = SimulatedWorkerLink(facts.num_blocks, facts.vocab_size)
        self._client_link = ClientLink(self.post, (), TickingClock())
        self._client_link.open(engine, self.now)
        for client in self._speaking():
            self._say(client, handshake_hello("client", 0, 0))
            engine.clients[client.name].credit = self.scenario.client_credit
        return engine

    def _start_group(self, epoch: int) -> FakeGroup:
        return FakeGroup(self.scenario, epoch, self._salts, self._is_nan, self._worker_link, self.now)

    def _is_nan(self) -> bool:
        return self._happens(self.scenario.nan)

    def _count_core(self) -> None:
        self.outcomes.preemptions += self._engine.scheduler.num_preemptions
        self.outcomes.cached_tokens += self._engine.counters.prefix_cache_hits


def simulate(seed: int) -> tuple[Outcomes, str]:
    """Run the scenario of `seed`; returns what it did and its trace."""
    simulation = Simulation(draw_scenario(seed))
    try:
        return simulation.run(), simulation.post.trace_hash
    except BaseException as error:
        error.add_note(f"simulate({seed}) at {simulation.outcomes}")
        raise
