"""The engine core's side of the link to the workers: starts a group, sends it steps, and detects its loss."""

import logging
import time
from collections.abc import Callable
from typing import Protocol, assert_never

from paged_serve.protocol.messages import control, worker
from paged_serve.protocol.messages.config import ParallelConfig
from paged_serve.protocol.messages.handshake import check_hello
from paged_serve.protocol.messages.loading import startup
from paged_serve.protocol.messages.loading.adapters import AdapterLoaded, LoadAdapter
from paged_serve.protocol.messages.loading.kv_tiers import BlocksMoved, FromWorkerTier, TierContents, ToWorkerTier
from paged_serve.protocol.messages.message import MAX_LONG_TEXT, Hello, Refused
from paged_serve.protocol.process.lifeline import is_at_work, is_receiving
from paged_serve.protocol.transport.channel import FRAMES_PER_ITERATION, SECONDS_PER_ITERATION

from ..engine.engine import EngineCore
from ..engine.step_log import StepLog
from ..scheduling.scheduler import Scheduler
from .step_time_limits import StepTimeLimits
from .worker_group import GroupState, WorkerGroup

log = logging.getLogger(__name__)

BringUp = startup.WorkerReady | startup.LoadProgress | startup.KVCacheReady | worker.WorkerFailed
Answer = worker.ModelRunnerOutput | AdapterLoaded | FromWorkerTier
FromWorker = BringUp | Answer

STAGES: dict[startup.LoadStage, str] = {
    "weights": "loading weights",
    "kernels": "compiling kernels",
    "graphs": "capturing graphs",
}


class WorkersChannel(Protocol):
    """A RouterChannel, or a simulation's queues."""

    @property
    def num_invalid(self) -> int: ...

    def receive(self) -> tuple[bytes, worker.ToCoreFromWorker] | None: ...

    def send(self, peer: bytes, message: worker.ToWorker) -> bool: ...


class WorkerLink:
    """Owns the current group. `report` sends to the supervisor, `note` writes to the flight recorder."""

    def __init__(
        self,
        channel: WorkersChannel,
        config: ParallelConfig,
        report: Callable[[control.FromChild], bool],
        note: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        is_receiving: Callable[[], bool] = is_receiving,
    ):
        self._clock = clock  # measures how long an iteration takes
        self._is_receiving = is_receiving
        self._channel = channel
        self._config = config
        self._report = report
        self._log = StepLog(note)
        self.num_blocks: int | None = None  # as allocated by the first group and reported to clients
        self.times = StepTimeLimits(config.step_timeout_s)
        self.group = WorkerGroup(config.tensor_parallel_size, self.times)
        self._from_outside: bool | None = None
        self._unreported: control.WorkersLost | None = None  # the supervisor was halted, and its queue full
        self._num_invalid = 0  # messages seen that could not be read

    @property
    def is_ready(self) -> bool:
        return self.group.state is GroupState.READY

    def receive(self, now: float) -> list[Answer]:
        """Handle received messages, at most 64 or for 2 ms; returns those that are for the engine, in order."""
        answers: list[Answer] = []
        ends = self._clock() + SECONDS_PER_ITERATION
        for count in range(FRAMES_PER_ITERATION):
            if count and self._clock() >= ends:
                break
            received = self._channel.receive()
            self._check_invalid()
            if received is None:
                break
            peer, message = received
            if isinstance(message, Hello):
                self._greet(peer, message)
            elif (rank := self.group.rank_of(peer)) is not None and self.group.state is not GroupState.LOST:
                answers += self._handle(rank, message, now)
        return answers

    def _handle(self, rank: int, message: FromWorker, now: float) -> list[Answer]:
        """Handle a message of a worker of this group; a protocol error ends the group."""
        if wrong := self.group.protocol_error(rank, message):
            self.lose(f"rank {rank} violates the protocol: {wrong}")
        elif isinstance(message, worker.ModelRunnerOutput):
            self.group.step_answered(now)
            self._log.answered(message)
            return [message]
        elif isinstance(message, AdapterLoaded):
            self.group.load_answered(message.place)
            return [message]
        elif isinstance(message, TierContents | BlocksMoved):
            return [message]
        else:
            self._bring_up(rank, message)
        return []

    def _check_invalid(self) -> None:
        """Lose the group after an unreadable message, which may have been the answer to a step."""
        if self._channel.num_invalid > self._num_invalid:
            self._num_invalid = self._channel.num_invalid
            if self.group.peers and self.group.state is not GroupState.LOST:
                self.lose("a worker's message could not be decoded; the line above has the reason")

    def send_step(self, plan: worker.SchedulerOutput, scheduler: Scheduler, now: float) -> None:
        self.group.step_sent(plan.step, scheduler.in_flight[-1].num_tokens, now)
        self._log.sent(scheduler)
        self._send_to_all(plan)

    def send_load(self, load: LoadAdapter, now: float) -> None:
        self.group.load_sent(load, now)
        log.info("loading adapter=%s place=%d", load.adapter.name, load.place)
        self._send_to_all(load)

    def send_transfers(self, messages: list[ToWorkerTier]) -> None:
        for message in messages:
            if self.is_ready:  # a rank may be gone since the last message
                self._send_to_all(message)

    def check_deadline(self, now: float) -> None:
        """Lose a group whose step is late: soon if all its threads sleep, later if some are running.

        One look does not tell: a worker that waited for a core may have just sent its answer, and sleep again.
        """
        self._report_loss()
        if self.is_ready and (late := self.group.late_load(now)):
            self.lose(late)
            return
        if now < self.group.deadline:
            return
        at_work = any(map(is_at_work, self.group.pids.values()))
        if not at_work and self.group.look_again(self._is_receiving()):
            return
        if at_work and self.group.extend_deadline() and now < self.group.deadline:
            return
        self.times.was_late()
        state = "some of its threads are running" if at_work else "all its threads sleep"
        self.lose(f"{self.group.lateness(now)}; {state}")

    def lose(self, reason: str, *, refused: bool = False) -> None:
        """Give up the group and ask the supervisor for a new one; `refused`: tell it that none would start."""
        epoch = self.group.epoch
        assert epoch is not None, "a group is lost before any of its ranks connected"
        self.group.fail(reason)
        log.error("workers lost epoch=%d reason=%s", epoch, reason)
        self._unreported = control.WorkersLost(epoch, reason[:MAX_LONG_TEXT], refused)
        self._report_loss()

    def _report_loss(self) -> None:
        if self._unreported is not None and self._report(self._unreported):
            self._unreported = None

    def replace(self, epoch: int, from_outside: bool | None = None) -> None:
        """Wait for the group of `epoch`, unless that or a later one is already here.

        `from_outside`: whether a cause other than a request ended the previous group, if known.
        """
        if self._from_outside is None:  # of several losses, the first one counts: no step ran after it
            self._from_outside = from_outside
        if self.group.epoch is None or epoch > self.group.epoch:
            self._unreported = None
            self.group = WorkerGroup(self._config.tensor_parallel_size, self.times, epoch)
            log.info("waiting for workers epoch=%d", epoch)

    def take_from_outside(self) -> bool:
        """Whether the last working group was ended from outside; called once per group, when the next is ready."""
        from_outside, self._from_outside = self._from_outside, None
        return bool(from_outside)

    def shut_down(self) -> None:
        for peer in self.group.peers.values():
            self._channel.send(peer, worker.Shutdown())

    def readable_facts(self, engine: EngineCore) -> dict[str, str]:
        """Facts about the group and the engine's limits, for the log and for operators."""
        ranks, block_size = self.group.loaded.values(), engine.kv_cache.block_size
        num_states = sum(group.is_state for group in engine.facts.kv_groups)
        # Of a group that grows with the context: a row has few blocks of the others.
        blocks_per_group = engine.facts.num_blocks // max(1, engine.kv_cache.num_groups - num_states)
        return {
            "kv_blocks": str(engine.facts.num_blocks),
            "block_size": str(block_size),
            "kv_tokens": str(blocks_per_group * block_size),  # more fit if some are behind windows
            "state_groups": f"{num_states} of {engine.kv_cache.num_groups}",
            "max_model_len": str(engine.facts.max_model_len),
            "dtype": self.group.facts.dtype,
            "device": self.group.facts.device,
            "weights_mb": f"{sum(ready.weights_bytes for ready in ranks) / 1e6:.1f}",
            "load_s": f"{max(ready.load_s for ready in ranks):.2f}",
        }

    def _greet(self, peer: bytes, hello: Hello) -> None:
        if hello.role == "worker" and not check_hello(hello):
            self.replace(hello.epoch)  # the supervisor's message may still be in transit
        reason = self.group.admit(peer, hello)
        if reason:
            log.warning("refused a worker rank=%d epoch=%d reason=%s", hello.index, hello.epoch, reason)
            stale = self.group.epoch is not None and hello.epoch < self.group.epoch
            self._channel.send(peer, Refused(reason, stale))
        else:
            self._channel.send(peer, worker.Welcome(hello.epoch))

    def _bring_up(self, rank: int, message: BringUp) -> None:
        group = self.group
        match message:
            case startup.LoadProgress():
                done, total = group.progress(message)
                self._report(control.Progress(STAGES[message.stage], done, total))
            case startup.WorkerReady():
                if group.load(message):
                    self._create_kv_cache()
            case startup.KVCacheReady():
                if group.allocate(rank):
                    log.info("workers are ready epoch=%d ranks=%d", group.epoch, group.size)
            case worker.WorkerFailed(reason=reason, refused=refused):
                self.lose(reason if refused else f"rank {rank}: {reason}", refused=refused)
            case _:
                assert_never(message)

    def _create_kv_cache(self) -> None:
        fitting = self.group.num_blocks
        self.num_blocks = fitting if self.num_blocks is None else self.num_blocks
        if fitting < self.num_blocks:  # the number of blocks is fixed; a rank that cannot allocate them reports it
            log.warning("%d KV blocks would fit now; allocating %d as at the start", fitting, self.num_blocks)
        self._send_to_all(startup.CreateKVCache(self.num_blocks))

    def _send_to_all(
        self, message: startup.CreateKVCache | worker.SchedulerOutput | LoadAdapter | ToWorkerTier
    ) -> None:
        for rank, peer in sorted(self.group.peers.items()):
            if not self._channel.send(peer, message):
                self.lose(f"rank {rank} is gone, or its queue is full")
                return
