"""Scheduler outputs in, runner outputs out, in the same order: at once on the CPU, later on a GPU."""

import select
from collections import deque
from collections.abc import Callable

from paged_serve.protocol.messages.worker import ModelRunnerOutput, SchedulerOutput

from .completions import Completions, DeviceEvent
from .model_runner import ModelRunner
from .pending_step import PendingStep


class Steps:
    """The steps in flight. `mark` puts an event on the stream after each; once it has passed, the step is complete."""

    def __init__(self, runner: ModelRunner, mark: Callable[[], DeviceEvent]):
        self._runner = runner
        self.mark = mark  # an event after all steps launched so far
        self._started: deque[PendingStep] = deque()
        self._completions = Completions()
        self.fd = self._completions.fd  # readable while `take` has something to return

    def launch(self, plan: SchedulerOutput) -> None:
        """Start the step of `plan`."""
        self._started.append(self._runner.launch(plan))
        self._completions.watch(self.mark())

    def take(self) -> ModelRunnerOutput | None:
        """The next step's output, or None if it is not complete."""
        return self._runner.result(self._started.popleft()) if self._completions.take() else None

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Start the step of `plan` and wait for it; no other may be in flight."""
        self.launch(plan)
        while (output := self.take()) is None:
            select.select([self._completions.fd], [], [])
        return output

    def prepare(self, on_progress: Callable[[int, int], None]) -> None:
        """Prepare decode steps, as ModelRunner.prepare does; call it on all ranks before the first step."""
        self._runner.prepare(on_progress)
