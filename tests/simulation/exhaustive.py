"""Explores every order of events for a few requests and a few blocks, through the real engine.

The search is breadth first. A state is the list of events that leads to it and is reached by replaying them; states
that are equal in everything that the engine, its workers and the client know count as one. In every state, the
accounting is right and the tokens are correct; every state has a next event until all requests are finished, and then
no block has an owner.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from paged_serve.engine_core.admission.validation import ModelFacts
from paged_serve.engine_core.engine.debug import check_invariants
from paged_serve.engine_core.engine.engine import EngineCore
from paged_serve.engine_core.engine.outputs import Outgoing
from paged_serve.engine_core.requests.request import Sequence
from paged_serve.engine_core.scheduling.scheduled_step import ScheduledStep
from paged_serve.engine_core.scheduling.worker_poison import WorkerPoison
from paged_serve.engine_core.simulation.client import SimulatedClient
from paged_serve.engine_core.simulation.fake_workers.fake_group import FakeGroup
from paged_serve.engine_core.simulation.scenarios.scenario import Scenario
from paged_serve.protocol.messages.config import Config, SchedulerConfig, SpeculationConfig
from paged_serve.protocol.messages.engine_core import AbortRequests, EngineCoreRequest
from paged_serve.protocol.messages.loading.startup import KVGroup
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

CLIENT = b"client:0"
NOW = 1.0  # constant: nothing here depends on the time
Event = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request; equal prompts share blocks."""

    prompt: tuple[int, ...]
    max_tokens: int
    n: int = 1


@dataclass(frozen=True, slots=True)
class Scope:
    """The requests, blocks and events of one exploration."""

    requests: tuple[Prompt, ...]
    num_blocks: int = 4
    block_size: int = 2
    max_num_seqs: int = 2
    max_num_batched_tokens: int = 4
    pipeline_depth: int = 2
    aborts: int = 1
    crashes: int = 1
    nans: int = 1
    windows: tuple[int | KVGroup, ...] = (0,)
    max_model_len: int = 8

    def scenario(self) -> Scenario:
        scheduler = SchedulerConfig(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            pipeline_depth=self.pipeline_depth,
        )
        config = Config(scheduler=scheduler, speculation=SpeculationConfig("off"))
        groups = tuple(each if isinstance(each, KVGroup) else KVGroup(each) for each in self.windows)
        facts = ModelFacts(self.num_blocks, self.block_size, self.max_model_len, 50, frozenset(), kv_groups=groups)
        return Scenario(0, config, facts, 1, len(self.requests), 256, 1.0, 0, 0, 0, 0, 0, (("", 1.0),), 0, None)


class State:
    """The engine, its workers and its client after some events."""

    def __init__(self, scope: Scope, events: tuple[Event, ...]):
        self.scope = scope
        scenario = scope.scenario()
        self._scenario = scenario
        self._is_nan = False
        self._salts: dict[tuple[bytes, int], str] = {}
        self.engine = EngineCore(scenario.config, scenario.facts)
        self.engine.add_client(CLIENT, NOW)
        self.client = SimulatedClient(CLIENT, scenario)
        self.group = self._start_group()
        self.left = {"submit": len(scope.requests), "abort": scope.aborts, "crash": scope.crashes, "nan": scope.nans}
        self.sequences: list[Sequence] = []
        for event in events:
            self._live(event)
        check_invariants(self.engine)

    def possible(self) -> Iterator[Event]:
        """The events that are possible now. A plan without work changes nothing, which the key shows."""
        if self.left["submit"]:
            yield "submit", len(self.scope.requests) - self.left["submit"]
        if len(self.engine.scheduler.in_flight) < self.scope.pipeline_depth and self.engine.scheduler.num_live:
            yield "plan", 0
        if self.group.has_work:
            yield "execute", 0
            if self.left["nan"]:
                yield "nan", 0
        if self.group.answers:
            yield "apply", 0
        if self.left["abort"]:
            yield from (("abort", stream_id) for stream_id in self.engine.clients[CLIENT].streams)
        if self.left["crash"] and self.sequences:
            yield from (("crash", from_outside) for from_outside in (0, 1))

    @property
    def is_over(self) -> bool:
        return not self.left["submit"] and self.engine.is_idle

    def check_end(self) -> None:
        pool = self.engine.kv_cache.pool
        assert pool.num_free == pool.num_blocks, "blocks are still owned although no sequence is live"
        assert not self.client.unfinished(), "a stream never received its end"

    def key(self) -> object:
        """Everything that determines the further course."""
        engine, scheduler, pool = self.engine, self.engine.scheduler, self.engine.kv_cache.pool
        worker = self.group.worker
        return (
            tuple(self.left.values()),
            tuple(_key_of(sequence, scheduler.step) for sequence in self.sequences),
            tuple(_ids(group) for group in (scheduler.running, scheduler.waiting, scheduler._prefilled)),
            tuple(_key_of_step(step, scheduler.step) for step in scheduler.in_flight),
            (
                tuple(scheduler.decode_rows._leaves),
                tuple(scheduler.decode_rows._joins),
                tuple(sorted(scheduler.free_rows)),
            ),
            tuple((s.stream_id, goal) for s, goal in scheduler.worker_poison._candidates.items()),
            _isolations_of(scheduler.worker_poison),
            (tuple(pool._refcounts), tuple(pool._blank), tuple(pool._cached), frozenset(pool._invalid)),
            tuple(sorted(pool._hash_by_block.items())),
            (repr(worker.cache.slots), tuple(worker.cache.poisoned), len(self.group.answers), engine.is_idle),
        )

    def _live(self, event: Event) -> None:
        what, which = event
        if what in self.left:
            self.left[what] -= 1
        match what:
            case "submit":
                self._submit(which)
            case "plan":
                self.group.plan(self.engine, NOW)
            case "execute" | "nan":
                self._is_nan = what == "nan"
                self.group.execute()
                self._is_nan = False
            case "apply":
                answer = self.group.answers.popleft()
                self._take(self.engine.apply(answer, NOW))
                self.group.check_poison(self.engine, answer.step)
            case "abort":
                self.client.streams[which].abort_reason = FinishReason.ABORT
                self._take(self.engine.abort(CLIENT, AbortRequests((which,)), NOW))
            case "crash":
                epoch = self.engine.worker_epoch + 1
                self._take(self.engine.workers_replaced(epoch, NOW, from_outside=bool(which)))
                self.group = self._start_group()

    def _submit(self, number: int) -> None:
        asked = self.scope.requests[number]
        params = SamplingParams(n=asked.n, max_tokens=asked.max_tokens, ignore_eos=True, seed=number)
        request = EngineCoreRequest(number * 10, pack_ids(asked.prompt), params)
        self._salts[CLIENT, number * 10] = ""
        outgoing = self.engine.add_request(CLIENT, request, NOW)
        streams = [self.engine.clients[CLIENT].streams[number * 10 + index] for index in range(asked.n)]
        self.client.submitted(request, NOW, [sequence.seed for sequence in streams])
        self.sequences += streams
        self._take(outgoing)

    def _take(self, outgoing: Outgoing) -> None:
        self.client.inbox.extend(message for _, message in outgoing)
        while self.client.inbox:
            assert not self.engine.outputs_received(CLIENT, self.client.take())

    def _start_group(self) -> FakeGroup:
        return FakeGroup(self._scenario, self.engine.worker_epoch, self._salts, lambda: self._is_nan)


def _ids(sequences: Iterable[Sequence]) -> tuple[int, ...]:
    return tuple(sequence.stream_id for sequence in sequences)


def _isolations_of(poison: WorkerPoison) -> object:
    return poison._last_isolated and (poison._last_isolated.stream_id, poison._num_isolations)


def _key_of_step(step: ScheduledStep, last: int) -> object:
    chunks = tuple((chunk.sequence.stream_id, chunk.start, chunk.end, chunk.discarded) for chunk in step.chunks)
    return step.step - last, chunks, _ids(step.decode.sequences), frozenset(step.discarded)


def _key_of(sequence: Sequence, step: int) -> object:
    joined = sequence.joined_step - step if sequence.joined_step else None
    tables = (tuple(map(tuple, sequence.block_tables)), tuple(sequence.num_released))
    counts = (sequence.prefill_len, sequence.num_scheduled, sequence.num_applied, sequence.num_published)
    leader = sequence.request.leader
    held = (leader.stream_id if leader else None, _ids(sequence.request.followers))
    return sequence.state, sequence.row, tables, counts, joined, tuple(sequence.output), sequence.num_nans, held


@dataclass(slots=True)
class Explored:
    states: int = 1
    events: int = 0
    ends: int = 0
    preemptions: int = 0  # the most in one order of events


def explore(scope: Scope) -> Explored:
    """Explore every order of events. An error lists the events."""
    seen = {State(scope, ()).key()}
    waiting: deque[tuple[Event, ...]] = deque([()])
    explored = Explored()
    while waiting:
        events = waiting.popleft()
        state = State(scope, events)
        explored.preemptions = max(explored.preemptions, state.engine.scheduler.num_preemptions)
        if state.is_over:
            state.check_end()
            explored.ends += 1
            continue
        before, is_stuck = state.key(), True
        for event in state.possible():
            explored.events += 1
            try:
                key = State(scope, (*events, event)).key()
            except BaseException as error:
                error.add_note(f"State({scope}, {(*events, event)})")
                raise
            is_stuck = is_stuck and key == before
            if key not in seen:
                seen.add(key)
                waiting.append((*events, event))
        assert not is_stuck, f"no event is possible, but requests are unfinished: {events}"
    explored.states = len(seen)
    return explored
