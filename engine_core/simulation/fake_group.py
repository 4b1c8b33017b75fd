"""A worker group in virtual time: its worker, the plans on their way to it, and the answers on their way back."""

from collections import deque
from collections.abc import Callable, Mapping

from paged_serve.protocol.message import unpack_ids
from paged_serve.protocol.worker import ModelRunnerOutput, SchedulerOutput

from ..engine import EngineCore
from .fake_worker import Background, FakeWorker
from .scenario import Scenario


class FakeGroup:
    """One epoch of the workers. Nothing happens but by `plan`, `execute` and `answers`.

    `salts`: what clients said, by (client, request id). The engine is not asked, as it may have mixed them up.
    """

    def __init__(
        self, scenario: Scenario, epoch: int, salts: Mapping[tuple[bytes, int], str], is_nan: Callable[[], bool]
    ):
        facts, block_size = scenario.facts, scenario.config.cache.block_size
        self._worker = FakeWorker(facts.num_blocks, block_size, facts.vocab_size, epoch, is_nan, scenario.poison)
        self._salts = salts
        self._plans: deque[tuple[SchedulerOutput, Background]] = deque()
        self.answers: deque[ModelRunnerOutput] = deque()

    @property
    def is_idle(self) -> bool:
        return not self._plans and not self.answers

    @property
    def has_work(self) -> bool:
        return bool(self._plans)

    def plan(self, engine: EngineCore, now: float) -> SchedulerOutput | None:
        """Have the engine make a plan, and send it off."""
        message = engine.plan(now)
        if message is not None:
            step = engine.scheduler.in_flight[-1]
            salts = {s.row: self._salts[s.request.client, s.request.request_id] for s in step.admitted}
            assert not any(s.num_nans and s.num_applied for s in step.admitted), "poison may be read again"
            applied_step = engine.scheduler.in_flight[0].step - 1
            self._plans.append((message, Background(applied_step, salts)))
        return message

    def execute(self) -> int:
        """The oldest plan's answer is on its way; returns how many of its results are not finite.

        WorkerDied as by a crash in mid-step: whoever calls replaces the group.
        """
        plan, background = self._plans.popleft()
        answer = self._worker.execute(plan, background)
        self.answers.append(answer)
        return len(unpack_ids(answer.nan_indices))

    def check_poison(self, engine: EngineCore, applied_step: int) -> None:
        """Nobody can find a block that the engine knows to be poisoned."""
        for block in self._worker.reported(applied_step):
            assert engine.kv_cache.pool.name_of(block) is None, "a poisoned block can be found"

    def spoil(self, block: int, offset: int) -> None:
        self._worker.spoil(block, offset)
