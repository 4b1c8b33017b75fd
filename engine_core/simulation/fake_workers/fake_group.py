"""A worker group in virtual time: its worker, the plans on their way to it, and the answers on their way back."""

import random
from collections import Counter, deque
from collections.abc import Callable, Mapping

from paged_serve.protocol.messages.message import unpack_ids
from paged_serve.protocol.messages.worker import ModelRunnerOutput, SchedulerOutput, ToCoreFromWorker

from ...engine.engine import EngineCore
from ...process.worker_link import Answer
from ...requests.request import Sequence, SequenceState
from ..links import SimulatedWorkerLink
from ..scenarios.scenario import Scenario
from .failures import wrong_params
from .fake_places import FakePlaces
from .fake_row import FakeDrafter
from .fake_worker import Background, FakeWorker


class FakeGroup:
    """One epoch of the workers. It acts only when `plan`, `execute` or `answer` is called.

    `salts`: by (client, request id), as the clients sent them, because the engine's own may be mixed up.
    """

    def __init__(
        self,
        scenario: Scenario,
        epoch: int,
        salts: Mapping[tuple[bytes, int], str],
        is_nan: Callable[[], bool],
        link: SimulatedWorkerLink | None = None,
        now: float = 0.0,
    ):
        """`link`: the core's link to its workers; without one, the caller passes steps and answers itself."""
        self._link = link
        self._peer = b"" if link is None else link.bring_up(epoch, now)
        facts = scenario.facts
        self.worker = FakeWorker(
            facts.num_blocks,
            facts.block_size,
            facts.vocab_size,
            epoch,
            is_nan,
            scenario.poison,
            facts.kv_groups,
            facts.pooling.needs_whole_prompt,
            not facts.pooling.is_bidirectional,
            FakeDrafter(
                random.Random(f"drafts of {scenario.seed}, {epoch}"), scenario.draft_accuracy, facts.vocab_size
            ),
        )
        self.worker.token_s = scenario.token_s
        self.worker.wrong_param = wrong_params(scenario, epoch)
        self.places = FakePlaces(scenario, epoch)
        self.worker.digest_at = self.places.digest_at
        self._salts = salts
        self._plans: deque[tuple[SchedulerOutput, Background]] = deque()
        self.answers: deque[ModelRunnerOutput] = deque()
        self.num_passes = self.num_copies = 0
        self._max_passes = scenario.max_passes
        self._passes = Counter[Sequence]()

    @property
    def is_idle(self) -> bool:
        return not self._plans and not self.answers

    @property
    def has_work(self) -> bool:
        return bool(self._plans)

    @property
    def next_step(self) -> int | None:
        """The number of the first step that is not computed; None: all are."""
        return self._plans[0][0].step if self._plans else None

    def plan(self, engine: EngineCore, now: float) -> SchedulerOutput | None:
        """Let the engine plan a step, and send it to the worker."""
        leaders = {sequence: sequence.request.leader for sequence in engine.scheduler.waiting}
        is_isolating = engine.scheduler.worker_poison.first() is not None
        message = engine.plan(now)
        if message is not None:
            step = engine.scheduler.in_flight[-1]
            paused = engine.paused_clients.names
            assert is_isolating or not any(s.request.client in paused for s in step.sequences()), (
                "a sequence of a paused client was scheduled"
            )
            if not is_isolating:
                waiting = [each for each in engine.scheduler.waiting if not _has_waited_for_a_leader(each, leaders)]
                self._count_passes(step.admitted, leaders.keys() & set(waiting))
            self.num_copies += len(step.copies) // 2
            salts = {s.row: self._salts[s.request.client, s.request.request_id] for s in step.admitted}
            reads_again = any(s.num_nans and s.num_applied for s in step.admitted)
            assert not reads_again, "a sequence with a result that was not finite reads the prefix cache"
            applied_step = engine.scheduler.in_flight[0].step - 1
            if self._link is not None:
                self._link.link.send_step(message, engine.scheduler, now)
                _, sent = self._link.channel.to_workers.popleft()
                assert sent is message, "the step that was sent is not the planned one"
            self._plans.append((message, Background(applied_step, salts)))
        return message

    def load_adapters(self, engine: EngineCore, now: float) -> None:
        """Send the loads that are due to the worker."""
        for load in engine.take_loads():
            if self._link is not None:
                self._link.link.send_load(load, now)
                _, sent = self._link.channel.to_workers.popleft()
                assert sent is load, "the load that was sent is not the one that is due"
            self.places.begin(load)

    def answer(self, now: float) -> list[Answer]:
        """Send the oldest answer through the link; returns the answers that the link accepts."""
        assert self._link is not None
        return self._link.send_to_core(self._peer, self.answers.popleft(), now)

    def send_to_core(self, message: ToCoreFromWorker, now: float) -> list[Answer]:
        """Send any message, also one that violates the protocol."""
        assert self._link is not None
        return self._link.send_to_core(self._peer, message, now)

    def _count_passes(self, admitted: list[Sequence], waiting: set[Sequence]) -> None:
        """Count passes from the order within each tenant, which never changes, independently of the queue.

        `waiting`: the sequences that waited before the step was planned and still wait.
        """
        for passed in waiting:
            tenant, order = passed.request.tenant, passed.order
            count = sum(each.request.tenant is tenant and each.order > order for each in admitted)
            self._passes[passed] += count
            self.num_passes += count
            assert self._passes[passed] <= self._max_passes, f"stream {passed.stream_id} was passed too often"

    def execute(self) -> int:
        """Compute the oldest plan and queue its answer; returns how many of its results are not finite.

        Raises WorkerDied if a poison request crashes the worker: the caller replaces the group.
        """
        plan, background = self._plans.popleft()
        answer = self.worker.execute(plan, background)
        self.answers.append(answer)
        return len(unpack_ids(answer.nan_indices)) + sum(entry.pooled is None for entry in answer.pooled)

    def check_poison(self, engine: EngineCore, applied_step: int) -> None:
        """No slot that the engine knows to be poisoned is in the prefix cache.

        What is behind the tokens of a partial block is not: its readers overwrite it. A block enters the cache as soon
        as the step that writes it is sent, if it is behind a window or is written as a copy. So with windows this is
        checked only while no step is in flight, and never of blocks that a step in flight overwrites with copies.
        """
        if self._plans and engine.kv_cache.groups.windows:
            return
        copied = {block for plan, _ in self._plans for block in unpack_ids(plan.copied_blocks)[1::2]}
        pool = engine.kv_cache.pool
        for block, offset in self.worker.cache.reported(applied_step):
            if block not in copied and (key := pool.hash_of(block)) is not None:
                length = pool.tails.length_of(key)
                assert length is not None, "a poisoned block is in the prefix cache"
                assert offset >= length, "a poisoned slot is among a tail's tokens"

    def spoil(self, block: int, offset: int) -> None:
        self.worker.cache.spoil(block, offset)


def _has_waited_for_a_leader(sequence: Sequence, leaders: Mapping[Sequence, Sequence | None]) -> bool:
    """Whether it waited outside the queue until the leader that it had, by `leaders`, was preempted in this plan."""
    leader = leaders.get(sequence)
    return leader is not None and leader is not sequence and leader.state is SequenceState.PREEMPTED
