"""Messages between the supervisor and the processes it has started."""

from typing import Annotated

from msgspec import Meta

from .config import Config
from .engine_core import MAX_CORE_FAILURES, CoreFailure
from .message import Count, Epoch, Hello, LongText, Message, Record, Refused, ShortText, Step

MAX_FILES = 1 << 14


class FileStamp(Record, frozen=True):
    """A file that results depend on, as it was before the first process started."""

    path: LongText
    version: ShortText  # its size and the time of its last write; "": there was no such file


class Welcome(Message, frozen=True):
    """The whole configuration, resolved."""

    config: Config
    core_failures: Annotated[tuple[CoreFailure, ...], Meta(max_length=MAX_CORE_FAILURES)] = ()  # to a core: the latest
    files: Annotated[tuple[FileStamp, ...], Meta(max_length=MAX_FILES)] = ()  # to be read only while they are the same
    predecessor_failed: bool = False  # to a frontend: the one that it replaces has failed by itself


class Drain(Message, frozen=True):
    """Take no new requests, finish those accepted; a frontend answers Drained when none is left."""


class Stop(Message, frozen=True):
    """End now, cleanly; exit code 0."""


class WorkersReplaced(Message, frozen=True):
    """To the core: the worker group of this epoch is being started; the one before is gone."""

    epoch: Epoch
    from_outside: bool = False  # a signal from outside ended the previous group: no request is the cause


class Promote(Message, frozen=True):
    """To a standby worker: join the worker group of this epoch as the rank that it was started for."""

    epoch: Epoch


class DescribeState(Message, frozen=True):
    """To the core: answer with State."""


class IsolationRecorded(Message, frozen=True):
    """To the core: its IsolatesCandidates is recorded, so that a sudden end of the core is attributed to that turn."""

    turn: Count  # as in IsolatesCandidates


ToChild = Welcome | Refused | Drain | Stop | WorkersReplaced | Promote | DescribeState | IsolationRecorded


class Ready(Message, frozen=True):
    """This process is ready. `facts`: readable figures for the banner (name -> value)."""

    facts: Annotated[dict[ShortText, LongText], Meta(max_length=64)]


class Progress(Message, frozen=True):
    """Progress of loading, for the progress bar."""

    text: ShortText
    done: Step
    total: Step


class Heartbeat(Message, frozen=True):
    """Sent by the process's main loop every 250 ms: shows that the loop makes progress."""

    step: Step


class Drained(Message, frozen=True):
    """This process has no accepted request left."""


class Failed(Message, frozen=True):
    """Why this process is about to end. `refused`: a restart does not help."""

    reason: LongText
    refused: bool = False


class WorkersLost(Message, frozen=True):
    """From the core: the worker group of `epoch` is lost (a rank failed or exceeded the time limit of a step)."""

    epoch: Epoch
    reason: LongText
    refused: bool = False  # as in WorkerFailed; the rank's own Failed may arrive later, or never, as it is killed now


class PoisonEnded(Message, frozen=True):
    """The request that killed the last worker groups, or frontends, was found, and has ended with an error."""


class IsolatesCandidates(Message, frozen=True):
    """From the core: a request runs alone, now or next, because it may have killed a core."""

    turn: Count  # as in IsolationTurn; 0: no isolation


class HasWorkers(Message, frozen=True):
    """From the core, whenever it changes after Ready: without workers it computes no request, so none ends it."""

    is_ready: bool


class ReportAsked(Message, frozen=True):
    """SIGUSR1 came to this process instead of the supervisor."""


class State(Message, frozen=True):
    """From the core: running and waiting requests, the blocks of each stream, and the result of an audit."""

    json: Annotated[bytes, Meta(max_length=1 << 20)]  # numbers and names only; "" when it would be too long


FromChild = (
    State
    | Hello
    | Ready
    | Progress
    | Heartbeat
    | Drained
    | Failed
    | WorkersLost
    | PoisonEnded
    | IsolatesCandidates
    | HasWorkers
    | ReportAsked
)
