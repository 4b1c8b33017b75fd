"""Plans in, outputs out, in the same order: at once on the host, later on a device."""

import select
from collections import deque
from collections.abc import Callable
from typing import Protocol

from paged_serve.protocol.messages.worker import ModelRunnerOutput, SchedulerOutput

from .completions import Completions, DeviceEvent
from .device_runner import DeviceRunner, PendingStep
from .model_runner import ModelRunner


class Steps(Protocol):
    fd: int | None  # readable when `take` has something that it had not after the last `launch`

    def launch(self, plan: SchedulerOutput) -> None:
        """Start the step of `plan`."""
        ...

    def take(self) -> ModelRunnerOutput | None:
        """The next step's output if it is there."""
        ...

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Start the step of `plan` and wait for it; no other is under way."""
        ...

    def prepare(self, on_progress: Callable[[int, int], None]) -> None:
        """Before the first step, on all ranks at once, what makes steps faster; `on_progress(done, of)` meanwhile."""
        ...


class HostSteps:
    """A step is through when it was launched."""

    def __init__(self, runner: ModelRunner):
        self.fd: int | None = None
        self._runner = runner
        self._outputs: deque[ModelRunnerOutput] = deque()

    def launch(self, plan: SchedulerOutput) -> None:
        self._outputs.append(self._runner.execute(plan))

    def take(self) -> ModelRunnerOutput | None:
        return self._outputs.popleft() if self._outputs else None

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        return self._runner.execute(plan)

    def prepare(self, on_progress: Callable[[int, int], None]) -> None:
        pass


class DeviceSteps:
    """`mark` puts an event on the device's stream; a step is through when the device has passed the one behind it."""

    def __init__(self, runner: DeviceRunner, mark: Callable[[], DeviceEvent]):
        self._runner = runner
        self._mark = mark
        self._started: deque[PendingStep] = deque()
        self._completions = Completions()
        self.fd: int | None = self._completions.fd

    def launch(self, plan: SchedulerOutput) -> None:
        self._started.append(self._runner.launch(plan))
        self._completions.watch(self._mark())

    def take(self) -> ModelRunnerOutput | None:
        return self._runner.result(self._started.popleft()) if self._completions.take() else None

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        self.launch(plan)
        while (output := self.take()) is None:
            select.select([self._completions.fd], [], [])
        return output

    def prepare(self, on_progress: Callable[[int, int], None]) -> None:
        self._runner.prepare(on_progress)
