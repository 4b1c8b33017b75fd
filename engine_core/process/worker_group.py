"""The tensor-parallel ranks as one object: they become ready together, and if one fails, the group is lost."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

from paged_serve.protocol.messages.handshake import check_hello
from paged_serve.protocol.messages.loading.adapters import LoadAdapter
from paged_serve.protocol.messages.loading.kv_tiers import BlocksMoved, TierContents
from paged_serve.protocol.messages.loading.startup import KVCacheReady, LoadProgress, WorkerReady
from paged_serve.protocol.messages.message import Hello
from paged_serve.protocol.messages.worker import ModelRunnerOutput, ToCoreFromWorker
from paged_serve.protocol.state_machine import fire

from .step_time_limits import StepTimeLimits


class GroupState(Enum):
    LOADING = auto()  # ranks connect and load weights
    ALLOCATING = auto()  # CreateKVCache was sent
    READY = auto()
    LOST = auto()  # waits to be replaced


class GroupEvent(Enum):
    ALL_LOADED = auto()
    ALL_ALLOCATED = auto()
    FAIL = auto()


GROUP_TRANSITIONS = {
    (GroupState.LOADING, GroupEvent.ALL_LOADED): GroupState.ALLOCATING,
    (GroupState.ALLOCATING, GroupEvent.ALL_ALLOCATED): GroupState.READY,
    (GroupState.LOADING, GroupEvent.FAIL): GroupState.LOST,
    (GroupState.ALLOCATING, GroupEvent.FAIL): GroupState.LOST,
    (GroupState.READY, GroupEvent.FAIL): GroupState.LOST,
}


@dataclass(slots=True)
class Load:
    """A LoRA adapter that the ranks are loading."""

    name: str
    began_s: float
    num_answers: int = 0


EXTENSION_FACTOR = 8.0  # factor of the deadline for workers that are visibly running
LOOK_AGAIN_S, MOST_LOOKS = 0.02, 50  # at workers that sleep: their answer may be unread


@dataclass(slots=True)
class WorkerGroup:
    """One incarnation of all ranks. `epoch` is None until the first rank of the first group names it."""

    size: int
    times: StepTimeLimits
    epoch: int | None = None
    state: GroupState = GroupState.LOADING
    peers: dict[int, bytes] = field(default_factory=dict)  # by rank
    pids: dict[int, int] = field(default_factory=dict)  # by rank
    loaded: dict[int, WorkerReady] = field(default_factory=dict)
    allocated: set[int] = field(default_factory=set)
    failure: str = ""
    _progress: dict[int, LoadProgress] = field(default_factory=dict)
    _loads: dict[int, Load] = field(default_factory=dict)  # by place
    _in_flight: deque[tuple[int, int]] = field(default_factory=deque)  # number and tokens of each step
    _working_since: float = 0.0
    _deadline_factor: float = 1.0  # factor of the current step's deadline
    _num_looks: int = 0  # at workers that sleep although the step is late
    _all_is_received: bool = False  # what they had sent by the last look

    def rank_of(self, peer: bytes) -> int | None:
        """The rank of `peer`; None for an unknown peer and for ranks of a former group."""
        return next((rank for rank, other in self.peers.items() if other == peer), None)

    def admit(self, peer: bytes, hello: Hello) -> str:
        """Admit a rank; returns the reason for a refusal, or "". The owner handles a Hello of another epoch first."""
        reason = check_hello(hello)
        if not reason and hello.role != "worker":
            reason = f"role {hello.role!r}; only workers connect here"
        if not reason and not 0 <= hello.index < self.size:
            reason = f"rank {hello.index} in a group of {self.size}"
        if not reason and self.epoch is not None and hello.epoch != self.epoch:
            reason = f"worker group {hello.epoch}; group {self.epoch} is in use"
        if not reason and self.peers.get(hello.index, peer) != peer:
            reason = f"rank {hello.index} of group {hello.epoch} is already connected"
        if not reason:
            self.epoch = hello.epoch
            self.peers[hello.index] = peer
            self.pids[hello.index] = hello.pid
        return reason

    def protocol_error(self, rank: int, message: ToCoreFromWorker) -> str:
        """Why this message violates the protocol in the current state, or ""; called before the message is counted."""
        if not isinstance(message, ModelRunnerOutput | Hello) and message.rank != rank:
            return f"its message names rank {message.rank}"
        if isinstance(message, TierContents | BlocksMoved) and message.epoch != self.epoch:
            return f"it reports on its tier for epoch {message.epoch}"
        if isinstance(message, WorkerReady) and (self.state is not GroupState.LOADING or rank in self.loaded):
            return f"it reports loaded weights while the group is {self.state.name}"
        if isinstance(message, WorkerReady) and any(
            message.kv_groups != other.kv_groups for other in self.loaded.values()
        ):
            return f"its KV groups are not those of the other ranks: {message.kv_groups}"
        if isinstance(message, WorkerReady) and any(
            message.block_size != other.block_size for other in self.loaded.values()
        ):
            return f"its blocks of {message.block_size} tokens are not those of the other ranks"
        if isinstance(message, KVCacheReady) and (self.state is not GroupState.ALLOCATING or rank in self.allocated):
            return f"it reports its KV cache while the group is {self.state.name}"
        return self._answer_error(rank, message) if isinstance(message, ModelRunnerOutput) else ""

    def _answer_error(self, rank: int, answer: ModelRunnerOutput) -> str:
        if rank:
            return "it answers a step, which only rank 0 does"
        if answer.epoch != self.epoch:
            return f"it answers for epoch {answer.epoch}"
        if not self._in_flight or self._in_flight[0][0] != answer.step:
            return f"it answers step {answer.step}; {[step for step, _ in self._in_flight]} are in flight"
        return ""

    def load(self, ready: WorkerReady) -> bool:
        """Record that a rank has loaded its weights; True for the last one."""
        self.loaded[ready.rank] = ready
        if len(self.loaded) < self.size:
            return False
        self._fire(GroupEvent.ALL_LOADED)
        return True

    def allocate(self, rank: int) -> bool:
        """Record that a rank has allocated its blocks; True for the last one."""
        self.allocated.add(rank)
        if len(self.allocated) < self.size:
            return False
        self._fire(GroupEvent.ALL_ALLOCATED)
        return True

    def progress(self, message: LoadProgress) -> tuple[int, int]:
        """(done, total) of the message's stage, summed over the ranks known to be in it."""
        self._progress[message.rank] = message
        parts = [part for part in self._progress.values() if part.stage == message.stage]
        return sum(part.done for part in parts), sum(part.total for part in parts)

    def step_sent(self, step: int, num_tokens: int, now: float) -> None:
        if not self._in_flight:
            self._begin_step(now)
        self._in_flight.append((step, num_tokens))

    def step_answered(self, now: float) -> None:
        """Start the next step's clock: until now it waited for this one."""
        _, num_tokens = self._in_flight.popleft()
        self.times.add(num_tokens, now - self._working_since)
        self._begin_step(now)

    def load_sent(self, load: LoadAdapter, now: float) -> None:
        self._loads[load.place] = Load(load.adapter.name, now)

    def load_answered(self, place: int) -> None:
        """One rank has answered; the engine checks that the answer was due."""
        if (load := self._loads.get(place)) is not None:
            load.num_answers += 1
            if load.num_answers == self.size:
                del self._loads[place]

    def late_load(self, now: float) -> str:
        """Describes a load that takes longer than any step may; "" if there is none."""
        for load in self._loads.values():
            if now - load.began_s > self.times.longest_s:
                return f"LoRA adapter {load.name!r} is not loaded after {now - load.began_s:.3g} s"
        return ""

    def shift_deadline(self, seconds: float) -> None:
        """Extend the deadlines by a time in which the core, and perhaps the workers, did not run."""
        self._working_since += seconds
        for load in self._loads.values():
            load.began_s += seconds

    def extend_deadline(self) -> bool:
        """Allow the current step eight times as long, once; False if that was already granted."""
        if self._deadline_factor > 1.0:
            return False
        self._deadline_factor = EXTENSION_FACTOR
        return True

    def look_again(self, is_receiving: bool) -> bool:
        """Postpone the deadline of workers that sleep until what they have sent is read; False if it has been.

        `is_receiving`: it may not even have been received yet.
        """
        self._num_looks += 1
        if self._all_is_received or self._num_looks > MOST_LOOKS:
            return False
        self._all_is_received = not is_receiving
        self._working_since += LOOK_AGAIN_S
        return True

    @property
    def deadline(self) -> float:
        """The time by which the current step must be answered; infinity without one."""
        if self.state is not GroupState.READY or not self._in_flight:
            return float("inf")
        return self._working_since + min(
            self.times.longest_s, self._deadline_factor * self.times.allowed_s(self._in_flight[0][1])
        )

    def lateness(self, now: float) -> str:
        """Describes how late the current step is, for the log."""
        num_tokens = self._in_flight[0][1]
        usual_s = self.times.usual_s(num_tokens)
        usual = "" if usual_s is None else f"; 99.9 % of such steps take at most {usual_s:.3g} s"
        return f"no answer to a step of {num_tokens} tokens for {now - self._working_since:.3g} s{usual}"

    def _begin_step(self, now: float) -> None:
        self._working_since, self._deadline_factor = now, 1.0
        self._num_looks, self._all_is_received = 0, False

    def fail(self, reason: str) -> None:
        """Mark the group as lost."""
        self._fire(GroupEvent.FAIL)
        self.failure = reason

    @property
    def num_blocks(self) -> int:
        """The number of blocks that fit every rank."""
        return min(ready.num_blocks for ready in self.loaded.values())

    @property
    def facts(self) -> WorkerReady:
        """Rank 0's report on the model; it is the same for all ranks."""
        return self.loaded[0]

    def _fire(self, event: GroupEvent) -> None:
        self.state = fire(GROUP_TRANSITIONS, self.state, event, f"worker group {self.epoch}")
