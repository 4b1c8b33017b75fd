"""Runs one scenario: the engine under a virtual clock, with faults drawn from the seed.

Oracle: every stream equals the output of its request alone, is delivered in order and ends once; the engine's
invariants hold after every step; everything ends; the same seed leaves the same trace.
"""

import random

import msgspec

from paged_serve.protocol.messages.engine_core import (
    DEADLY_ISOLATIONS,
    AbortRequests,
    ClientHeartbeat,
    EngineCoreRequest,
    OutputsReceived,
    RejectReason,
    RequestRejected,
    ToEngineCore,
)
from paged_serve.protocol.messages.sampling_params import FinishReason

from ..engine.debug import check_invariants
from ..engine.engine import CLIENT_LEASE_S, EngineCore
from .client import SimulatedClient
from .fake_workers.failures import with_failures
from .links import SimulatedLinks
from .outcomes import Outcomes
from .scenarios.adapters import DEADLY, with_adapter, with_adapters
from .scenarios.drawn_requests import draw_request
from .scenarios.scenario import Scenario, draw_scenario, happens
from .simulated_core import TICK_S, SimulatedCore

MAX_TICKS = 200_000
GROUPS_PER_POISON = 1 + DEADLY_ISOLATIONS


class Simulation:
    """`run` returns once everything was delivered; an AssertionError names what went wrong."""

    def __init__(self, scenario: Scenario):
        self.scenario = scenario
        self.outcomes = Outcomes()
        self.now = 0.0
        self._rng = random.Random(scenario.seed)
        self._clients = [SimulatedClient(b"client:%d" % i, scenario) for i in range(scenario.num_clients)]
        self.links = SimulatedLinks({client.name: client.inbox for client in self._clients}, scenario.client_credit)
        self._num_submitted = 0
        self._late_aborts: list[tuple[SimulatedClient, AbortRequests]] = []
        self._retries: dict[int, SimulatedClient] = {}  # request ids that the core must still take back
        self._core = SimulatedCore(scenario, self.links, self.outcomes, self._rng)
        self._core.start(0, self._names_responsive(), self.now)

    @property
    def _engine(self) -> EngineCore:
        return self._core.engine

    def run(self) -> Outcomes:
        for _ in range(MAX_TICKS):
            if self._tick():
                self._finish()
                return self.outcomes
        raise AssertionError(f"seed {self.scenario.seed}: not finished after {MAX_TICKS} ticks")

    def _tick(self) -> bool:
        """One tick, in which clients, core and workers may each act once; True when nothing is left to do."""
        rng = self._rng
        self.now += rng.random() * 2 * TICK_S
        self._inject_faults()
        self._core.begin_iteration(self.now)
        if rng.random() < 0.1:
            self._heartbeat()
        if self._num_submitted < self.scenario.num_requests and rng.random() < 0.3:
            self._submit()
        self._core.expire(self.now)
        self._core.advance(self.now)
        self._run_clients()
        return self._is_over()

    def _is_over(self) -> bool:
        if self._num_submitted < self.scenario.num_requests or self._engine.scheduler.num_live or self._retries:
            return False
        return self._core.is_idle and not any(client.inbox for client in self._responsive())

    def _finish(self) -> None:
        pool = self._engine.kv_cache.pool
        assert pool.num_free == pool.num_blocks, "blocks are still owned although no sequence is live"
        for client in self._responsive():
            assert not client.unfinished(), f"streams {client.unfinished()} never ended"
        streams = [stream for client in self._clients for stream in client.streams.values()]
        self.outcomes.streams = len(streams)
        self.outcomes.tokens = sum(len(stream.received) for stream in streams)
        self.outcomes.vectors = sum(client.num_vectors for client in self._clients)
        self.outcomes.errors = sum(client.num_errors for client in self._clients)
        self.outcomes.refused = sum(client.num_refused for client in self._clients)
        self.outcomes.failed = sum(client.num_failed for client in self._clients)
        self.outcomes.poisoned = sum(client.num_poisoned for client in self._clients)
        assert 2 * self.outcomes.errors <= self.outcomes.nans, "a stream failed without two bad results"
        num_deadly = sum(stream.seed == self.scenario.poison for stream in streams) * (1 + self.outcomes.core_deaths)
        assert self.outcomes.crashes <= GROUPS_PER_POISON * num_deadly, "one poison request ended more worker groups"
        num_deadly = sum(_is_deadly(stream.request) for stream in streams) * (1 + self.outcomes.core_deaths)
        assert self.outcomes.load_crashes <= GROUPS_PER_POISON * num_deadly, "one adapter ended more worker groups"
        self._core.count()
        self.outcomes.loads += self._core.group.places.num_loaded
        self.outcomes.passes += self._core.group.num_passes
        self.outcomes.copies += self._core.group.num_copies
        for name, count in self._core.tier_counts.items():
            setattr(self.outcomes, name, count)

    def _responsive(self) -> list[SimulatedClient]:
        return [client for client in self._clients if not client.is_silent]

    def _names_responsive(self) -> list[bytes]:
        return [client.name for client in self._responsive()]

    # Clients

    def _submit(self) -> None:
        if not (clients := self._responsive()):
            self._num_submitted = self.scenario.num_requests
            return
        rng = self._rng
        client = rng.choice(clients)
        self._num_submitted += 1
        request = draw_request(rng, self.scenario, self._num_submitted * 1000, 40 * TICK_S)
        request = with_adapter(request, self.scenario)
        self._send_request(client, client.next_turn(request, rng) if rng.random() < 0.2 else request)

    def _send_request(self, client: SimulatedClient, request: EngineCoreRequest) -> None:
        self._core.salts[client.name, request.request_id] = request.cache_salt
        self._send(client, request)
        accepted = self._engine.clients[client.name].running(request)
        if accepted is None:
            rejected = client.inbox.pop()
            assert isinstance(rejected, RequestRejected), "an accepted request vanished"
            assert rejected.reason is RejectReason.OVERLOADED or "KV blocks" in rejected.message, rejected
            self.outcomes.overloads += 1
            return
        client.submitted(request, self.now, [sequence.seed for sequence in accepted.sequences])
        self.outcomes.reused += any(sequence.output for sequence in accepted.sequences)
        if happens(self._rng, self.scenario.duplicate):
            self.outcomes.duplicates += 1
            before = self._engine.scheduler.num_live, len(client.inbox)
            self._send(client, request)
            after = self._engine.scheduler.num_live, len(client.inbox)
            assert after == before, "a repeated request was counted twice"

    def _send(self, client: SimulatedClient, message: ToEngineCore) -> None:
        self._core.receive(client.name, message, self.now)

    def _run_clients(self) -> None:
        rng = self._rng
        for client in self._responsive():
            self._send(client, ClientHeartbeat())
            while client.inbox and rng.random() < self.scenario.client_pace:
                self._send(client, OutputsReceived(client.take()))
            unfinished = [stream for stream in client.unfinished() if stream // 1000 * 1000 not in self._retries]
            if rng.random() < self.scenario.abort and unfinished:
                victims = rng.sample(unfinished, rng.randint(1, min(3, len(unfinished))))
                self._abort(client, victims, rng.choice((FinishReason.ABORT, FinishReason.STOP)))
        self._deliver_late_aborts()
        for request_id, client in list(self._retries.items()):
            if rng.random() < 0.2:
                self._retry(client, request_id)

    def _heartbeat(self) -> None:
        """Clients that have been silent for too long are removed, no others."""
        self._core.heartbeat(self.now)
        for name in self._names_responsive():
            assert name in self._engine.clients, "a client that is alive was removed as silent"

    def _abort(self, client: SimulatedClient, stream_ids: list[int], reason: FinishReason) -> None:
        for stream_id in stream_ids:
            stream = client.streams[stream_id]
            stream.abort_reason = reason if stream.abort_reason is None else stream.abort_reason
        message = AbortRequests((*stream_ids, 7), reason)  # no stream has the id 7
        reasons = {client.streams[stream_id].abort_reason for stream_id in stream_ids}
        if reasons == {reason} and happens(self._rng, 0.3):
            self._late_aborts.append((client, message))
        elif reasons == {reason}:
            self._send(client, message)
            check_invariants(self._engine)
            self.outcomes.aborts += 1

    def _deliver_late_aborts(self) -> None:
        """Send aborts that were delayed; some of their streams may have ended by now."""
        while self._late_aborts and self._rng.random() < 0.3:
            client, message = self._late_aborts.pop(0)
            if not client.is_silent:
                self._send(client, message)
                self.outcomes.late_aborts += 1

    # Faults

    def _inject_faults(self) -> None:
        rng, scenario = self._rng, self.scenario
        if rng.random() < scenario.worker_death:
            self._core.kill_workers(self.now, from_outside=True)
        if rng.random() < scenario.core_death:
            self._kill_core()
        if rng.random() < scenario.silence and len(clients := self._responsive()) > 1:
            self._silence(max(clients, key=lambda client: client.num_tokens_unfinished))
        if happens(self._rng, scenario.spoil):
            facts = scenario.facts
            self._core.group.spoil(rng.randrange(facts.num_blocks), rng.randrange(facts.block_size))
            self.outcomes.spoiled += 1
        if happens(self._rng, scenario.reset):
            self._engine.kv_cache.pool.drop_all()
            check_invariants(self._engine)
            self.outcomes.resets += 1
        if happens(self._rng, scenario.slow_step):
            self._core.stalled_ticks = rng.randint(1, 60)
            self.outcomes.slow_steps += 1
        if happens(self._rng, scenario.clock_jump):
            seconds = rng.uniform(0.0, 60.0)
            self.now += seconds
            self.outcomes.clock_jumps += 1
            self._core.begin_iteration(self.now)
            self._heartbeat()  # before any client was heard
            self.outcomes.halts += seconds > CLIENT_LEASE_S

    def _silence(self, lost: SimulatedClient) -> None:
        """A client falls silent: its lease ends or a send to it fails. Other clients repeat its requests."""
        lost.is_silent = True
        self.outcomes.silent_clients += 1
        if self._rng.random() < 0.2:
            return
        self._core.drop_client(lost.name, self.now)
        for request in lost.repeated_requests(self._rng, self.now):
            if clients := self._responsive():
                self._num_submitted += 1
                again = msgspec.structs.replace(request, request_id=self._num_submitted * 1000)
                self._send_request(self._rng.choice(clients), again)

    def _kill_core(self) -> None:
        """Everything in the core and in flight is lost; the clients send their unfinished requests again."""
        self._late_aborts.clear()
        self._retries.clear()
        self._core.restart(self._names_responsive(), self.now)
        for client in self._responsive():
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
        self._send(client, request)
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
                self._send(client, AbortRequests(tuple(over), reason))


def _is_deadly(request: EngineCoreRequest) -> bool:
    return request.adapter is not None and request.adapter.name == DEADLY


def simulate(seed: int, *, fails: bool = False) -> tuple[Outcomes, str]:
    """Run the scenario of `seed`; returns its outcomes and the hash of its trace. `fails`: see failures.py."""
    scenario = with_adapters(draw_scenario(seed))
    simulation = Simulation(with_failures(scenario) if fails else scenario)
    try:
        return simulation.run(), simulation.links.trace_hash
    except BaseException as error:
        error.add_note(f"simulate({seed}, {fails=}) at {simulation.outcomes}")
        raise
