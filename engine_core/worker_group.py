"""The tensor-parallel ranks as one object: they become ready together, and one that fails takes all with it."""

from dataclasses import dataclass, field
from enum import Enum, auto

from paged_serve.protocol.handshake import check_hello
from paged_serve.protocol.message import Hello
from paged_serve.protocol.state_machine import fire
from paged_serve.protocol.worker import LoadProgress, WorkerReady


class GroupState(Enum):
    LOADING = auto()  # ranks connect and load weights
    ALLOCATING = auto()  # they were told how many blocks to make
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
class WorkerGroup:
    """One incarnation of all ranks. `epoch` is None until the first rank of the first group names it."""

    size: int
    step_timeout_s: float
    epoch: int | None = None
    state: GroupState = GroupState.LOADING
    peers: dict[int, bytes] = field(default_factory=dict)  # by rank
    loaded: dict[int, WorkerReady] = field(default_factory=dict)
    allocated: set[int] = field(default_factory=set)
    failure: str = ""
    _progress: dict[int, LoadProgress] = field(default_factory=dict)
    _num_in_flight: int = 0
    _working_since: float = 0.0

    def rank_of(self, peer: bytes) -> int | None:
        """None for strangers and for ranks of a former group."""
        return next((rank for rank, other in self.peers.items() if other == peer), None)

    def admit(self, peer: bytes, hello: Hello) -> str:
        """Take a rank in; returns why not, or "". A Hello of another epoch is the owner's to judge first."""
        reason = check_hello(hello)
        if not reason and hello.role != "worker":
            reason = f"role {hello.role!r}; only workers connect here"
        if not reason and not 0 <= hello.index < self.size:
            reason = f"rank {hello.index} in a group of {self.size}"
        if not reason and self.epoch is not None and hello.epoch != self.epoch:
            reason = f"worker group {hello.epoch}; group {self.epoch} is in use"
        if not reason and self.peers.get(hello.index, peer) != peer:
            reason = f"rank {hello.index} of group {hello.epoch} is here already"
        if not reason:
            self.epoch = hello.epoch
            self.peers[hello.index] = peer
        return reason

    def load(self, ready: WorkerReady) -> bool:
        """A rank has its weights; True when it was the last one."""
        self.loaded[ready.rank] = ready
        if len(self.loaded) < self.size:
            return False
        self._fire(GroupEvent.ALL_LOADED)
        return True

    def allocate(self, rank: int) -> bool:
        """A rank has its blocks; True when it was the last one."""
        self.allocated.add(rank)
        if len(self.allocated) < self.size:
            return False
        self._fire(GroupEvent.ALL_ALLOCATED)
        return True

    def progress(self, message: LoadProgress) -> tuple[int, int]:
        """Bytes loaded and to be loaded, over all ranks heard of."""
        self._progress[message.rank] = message
        parts = self._progress.values()
        return sum(part.loaded_bytes for part in parts), sum(part.total_bytes for part in parts)

    def step_sent(self, now: float) -> None:
        if self._num_in_flight == 0:
            self._working_since = now
        self._num_in_flight += 1

    def step_answered(self, now: float) -> None:
        """The next step's time begins only now: it waited for this one."""
        self._num_in_flight -= 1
        self._working_since = now

    @property
    def deadline(self) -> float:
        """When the step that is being computed must be answered; infinite when there is none."""
        is_working = self.state is GroupState.READY and self._num_in_flight > 0
        return self._working_since + self.step_timeout_s if is_working else float("inf")

    def fail(self, reason: str) -> None:
        """The group is useless from here on."""
        self._fire(GroupEvent.FAIL)
        self.failure = reason

    @property
    def num_blocks(self) -> int:
        """What fits every rank."""
        return min(ready.num_blocks for ready in self.loaded.values())

    @property
    def facts(self) -> WorkerReady:
        """Rank 0's view of the model, which all share."""
        return self.loaded[0]

    def _fire(self, event: GroupEvent) -> None:
        self.state = fire(GROUP_TRANSITIONS, self.state, event, f"worker group {self.epoch}")
