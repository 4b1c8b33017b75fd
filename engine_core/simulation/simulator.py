"""Runs one scenario: the engine under a virtual clock, with everything that may go wrong going wrong by the seed.

Oracle: every stream equals what its request gets when it is alone in the world, is told in order, and ends once; the
engine's books balance after every step; everything ends; the same seed leaves the same trace.
"""

import hashlib
import random
from collections import deque
from dataclasses import dataclass, fields

import msgspec

from paged_serve.protocol.engine_core import (
    AbortRequests,
    EngineCoreOutputs,
    EngineCoreRequest,
    RejectReason,
    RequestRejected,
)
from paged_serve.protocol.message import pack_ids
from paged_serve.protocol.sampling_params import FinishReason
from paged_serve.protocol.worker import ModelRunnerOutput, SchedulerOutput

from ..debug import check_fairness, check_invariants
from ..engine import EngineCore, Outgoing
from .client import SimulatedClient
from .fake_worker import FakeWorker, WorkerDied
from .scenario import Scenario, draw_params, draw_prompt, draw_scenario

MAX_TICKS = 200_000
TICK_S = 0.02


@dataclass(slots=True)
class Tally:
    """What a run was worth."""

    steps: int = 0
    streams: int = 0
    tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    aborts: int = 0
    overloads: int = 0
    expired: int = 0
    worker_deaths: int = 0
    core_deaths: int = 0
    silent_clients: int = 0
    nans: int = 0
    errors: int = 0
    poisoned: int = 0
    steps_behind: int = 0

    def add(self, other: "Tally") -> None:
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


class Simulation:
    """`run` returns once everything was told; an AssertionError names what went wrong."""

    def __init__(self, scenario: Scenario):
        self.scenario = scenario
        self.tally = Tally()
        self.now = 0.0
        self._rng = random.Random(scenario.seed)
        self._trace = hashlib.sha256()
        self._clients = [SimulatedClient(b"client:%d" % i, scenario) for i in range(scenario.num_clients)]
        self._num_submitted = 0
        self._plans: deque[SchedulerOutput] = deque()
        self._answers: deque[ModelRunnerOutput] = deque()
        self._pause = 0  # ticks until the workers are back
        self._engine = self._start_core(epoch=0)
        self._worker = self._start_worker(epoch=0)

    @property
    def trace_hash(self) -> str:
        """Depends on every message that was ever sent."""
        return self._trace.hexdigest()

    def run(self) -> Tally:
        for _ in range(MAX_TICKS):
            if self._tick():
                self._finish()
                return self.tally
        raise AssertionError(f"seed {self.scenario.seed}: not all has ended after {MAX_TICKS} ticks")

    def _tick(self) -> bool:
        """A moment in which each party may act once; True when there is nothing left to do."""
        rng = self._rng
        self.now += rng.random() * 2 * TICK_S
        self._let_faults_happen()
        if self._num_submitted < self.scenario.num_requests and rng.random() < 0.3:
            self._submit()
        self._expire()
        if self._pause:
            self._pause -= 1
        elif rng.random() < 0.9 and (plan := self._engine.plan(self.now)) is not None:
            self._record(plan)
            self._plans.append(plan)
            if rng.random() < 0.5:
                check_invariants(self._engine)
        if self._plans and rng.random() < 0.9:
            try:
                self._answers.append(self._worker.execute(self._plans.popleft()))
            except WorkerDied:
                self._kill_workers(from_outside=False)
        if self._answers and rng.random() < 0.9:
            self._send(self._engine.apply(self._answers.popleft(), self.now))
            check_invariants(self._engine)
            if self.scenario.config.scheduler.policy == "fcfs":
                check_fairness(self._engine)
            self.tally.steps += 1
            self.tally.steps_behind += any(outbox.is_behind for outbox in self._engine.clients.values())
        self._let_clients_act()
        return self._is_over()

    def _is_over(self) -> bool:
        if self._num_submitted < self.scenario.num_requests or self._engine.scheduler.num_live:
            return False
        return not self._answers and not self._plans and not any(client.inbox for client in self._speaking())

    def _finish(self) -> None:
        pool = self._engine.kv_cache.pool
        assert pool.num_free == pool.num_blocks, "blocks are still owned though nobody lives"
        for client in self._speaking():
            assert not client.unfinished(), f"streams {client.unfinished()} were never told their end"
        self.tally.streams = sum(len(client.streams) for client in self._clients)
        self.tally.tokens = sum(len(s.received) for client in self._clients for s in client.streams.values())
        self.tally.errors = sum(client.num_errors for client in self._clients)
        self.tally.poisoned = sum(client.num_poisoned for client in self._clients)
        assert 2 * self.tally.errors <= self.tally.nans, "a stream failed without two bad results"
        self._count_core()

    def _speaking(self) -> list[SimulatedClient]:
        return [client for client in self._clients if not client.is_silent]

    # Clients

    def _submit(self) -> None:
        if not (clients := self._speaking()):
            self._num_submitted = self.scenario.num_requests
            return
        rng, facts = self._rng, self.scenario.facts
        client = rng.choice(clients)
        tenant, weight = rng.choice(self.scenario.tenants)
        self._num_submitted += 1
        request = EngineCoreRequest(
            request_id=self._num_submitted * 1000,
            prompt_token_ids=pack_ids(draw_prompt(rng, facts)),
            sampling_params=draw_params(rng, facts),
            priority=rng.randint(-2, 2) if self.scenario.config.scheduler.policy == "priority" else 0,
            cache_salt=rng.choice(("", "", "salt")),
            tenant=tenant,
            weight=weight,
            ttl_s=rng.uniform(0.0, 40 * TICK_S) if rng.random() < self.scenario.ttl else 0.0,
        )
        before = self._engine.scheduler.num_live
        outgoing = self._engine.add_request(client.name, request, self.now)
        if self._engine.scheduler.num_live == before:
            [(_, rejected)] = outgoing
            assert isinstance(rejected, RequestRejected), "an accepted request vanished"
            expected = (RejectReason.OVERLOADED, RejectReason.INVALID)
            assert rejected.reason in expected, rejected
            assert rejected.reason is RejectReason.OVERLOADED or "KV blocks" in rejected.message, rejected
            self.tally.overloads += 1
            return
        streams = self._engine.clients[client.name].streams
        n = request.sampling_params.n
        client.submitted(request, self.now, [streams[request.request_id + index].seed for index in range(n)])
        self._send(outgoing)

    def _let_clients_act(self) -> None:
        rng = self._rng
        for client in self._speaking():
            self._engine.heard_from(client.name, self.now)
            while client.inbox and rng.random() < self.scenario.client_pace:
                frames = client.take()
                self._send(self._engine.outputs_received(client.name, frames))
            if rng.random() < self.scenario.abort and (unfinished := client.unfinished()):
                victims = rng.sample(unfinished, rng.randint(1, min(3, len(unfinished))))
                self._abort(client, victims, rng.choice((FinishReason.ABORT, FinishReason.STOP)))
        for name in self._engine.expired_clients(self.now):
            self._engine.remove_client(name)
            check_invariants(self._engine)

    def _abort(self, client: SimulatedClient, stream_ids: list[int], reason: FinishReason) -> None:
        for stream_id in stream_ids:
            stream = client.streams[stream_id]
            stream.abort_reason = reason if stream.abort_reason is None else stream.abort_reason
        message = AbortRequests((*stream_ids, 7), reason)  # 7 is nobody's
        reasons = {client.streams[stream_id].abort_reason for stream_id in stream_ids}
        if reasons == {reason}:
            self._send(self._engine.abort(client.name, message, self.now))
            check_invariants(self._engine)
            self.tally.aborts += 1

    def _expire(self) -> None:
        outgoing = self._engine.expire(self.now)
        self.tally.expired += len(outgoing)
        self._send(outgoing)
        if outgoing:
            check_invariants(self._engine)

    # Faults

    def _let_faults_happen(self) -> None:
        rng, scenario = self._rng, self.scenario
        if rng.random() < scenario.worker_death:
            self._kill_workers(from_outside=True)
        if rng.random() < scenario.core_death:
            self._kill_core()
        if rng.random() < scenario.silence and (clients := self._speaking()):
            rng.choice(clients).is_silent = True
            self.tally.silent_clients += 1

    def _kill_workers(self, *, from_outside: bool) -> None:
        epoch = self._engine.worker_epoch + 1
        self._send(self._engine.workers_replaced(epoch, self.now, from_outside=from_outside))
        check_invariants(self._engine)
        for answer in self._answers:
            assert self._engine.apply(answer, self.now) == [], "an answer of dead workers counts"
        self._plans.clear()
        self._answers.clear()
        self._worker = self._start_worker(epoch)
        self._pause = self._rng.randint(0, 5)
        self.tally.worker_deaths += 1

    def _kill_core(self) -> None:
        """Everything in the core and on its way is lost; the clients ask again for what they miss."""
        self._count_core()
        self._plans.clear()
        self._answers.clear()
        self._engine = self._start_core(self._engine.epoch + 1)
        self._worker = self._start_worker(epoch=0)
        self.tally.core_deaths += 1
        for client in self._speaking():
            client.inbox.clear()
            client.epoch = self._engine.epoch
            for request in client.unfinished_requests(self.now):
                self._resume(client, request)
        check_invariants(self._engine)

    def _resume(self, client: SimulatedClient, request: EngineCoreRequest) -> None:
        self._send(self._engine.add_request(client.name, request, self.now))
        siblings = [request.request_id + index for index in range(request.sampling_params.n)]
        for reason in (FinishReason.ABORT, FinishReason.STOP):
            over = [
                stream_id
                for stream_id in siblings
                if client.streams[stream_id].finish_reason is not None
                or client.streams[stream_id].abort_reason is reason
            ]
            if over:
                self._send(self._engine.abort(client.name, AbortRequests(tuple(over), reason), self.now))

    def _is_nan(self) -> bool:
        is_nan = self._rng.random() < self.scenario.nan
        self.tally.nans += is_nan
        return is_nan

    # The world

    def _start_core(self, epoch: int) -> EngineCore:
        engine = EngineCore(self.scenario.config, self.scenario.facts, epoch, self.scenario.num_groups)
        for client in self._clients:
            if not client.is_silent:
                engine.add_client(client.name, self.now)
                engine.clients[client.name].credit = self.scenario.client_credit
        return engine

    def _start_worker(self, epoch: int) -> FakeWorker:
        facts, block_size = self.scenario.facts, self.scenario.config.cache.block_size
        poison = self.scenario.poison
        return FakeWorker(facts.num_blocks, block_size, facts.vocab_size, epoch, self._is_nan, poison)

    def _count_core(self) -> None:
        self.tally.preemptions += self._engine.scheduler.num_preemptions
        self.tally.cached_tokens += self._engine.counters.prefix_cache_hits

    def _send(self, outgoing: Outgoing) -> None:
        self._record(outgoing)
        for name, message in outgoing:
            client = next(client for client in self._clients if client.name == name)
            client.inbox.append(message)
            num_paid = sum(isinstance(message, EngineCoreOutputs) for message in client.inbox)
            assert num_paid <= self.scenario.client_credit, "more messages are under way than the credit allows"

    def _record(self, messages: object) -> None:
        self._trace.update(msgspec.msgpack.encode(messages))


def simulate(seed: int) -> tuple[Tally, str]:
    """Run the scenario of `seed`; returns what it did and its trace."""
    simulation = Simulation(draw_scenario(seed))
    try:
        return simulation.run(), simulation.trace_hash
    except BaseException as error:
        error.add_note(f"simulate({seed}) at {simulation.tally}")
        raise
