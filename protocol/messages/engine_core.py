"""Messages between a client (HTTP frontend, LLM, client library) and the engine core: tokens in, tokens out.

Each sequence of an accepted request ends with exactly one EngineCoreOutput that carries a finish_reason; a refused
request gets one RequestRejected. After the core has died, a client reconnects with Hello, sees a new epoch in Welcome,
and sends its unfinished requests again as `resumed`, with the tokens it already received in `resume_token_ids`.

Requests that may have killed a core are candidates. Their clients withhold them, report their number with
CandidatesWithheld, and send one at each IsolationTurn. The core computes that request alone until its client sends
CandidatesWithheld again. If the core crashes meanwhile, the client ends that request with an error.
"""

from enum import IntEnum
from typing import Annotated

from msgspec import Meta

from .loading.adapters import Adapter
from .message import (
    MAX_TOKENS_PER_MESSAGE,
    Bytes,
    Count,
    Epoch,
    Hello,
    LongText,
    Message,
    Record,
    Refused,
    Seconds,
    ShortText,
    Step,
    TokenBytes,
    TokenId,
    TokenIds,
    Weight,
    check_int32,
    check_logprobs,
)
from .pooling_params import Pooled, PoolingParams, Tasks
from .sampling_params import MAX_N, FinishReason, SamplingParams
from .stats import SchedulerStats

StreamId = Annotated[int, Meta(ge=0, le=2**62)]
IsolationTokens = Annotated[int, Meta(ge=0, le=512 + MAX_TOKENS_PER_MESSAGE)]
Ttl = Annotated[float, Meta(ge=0.0, le=86400.0)]  # seconds
MAX_UTILITY_BYTES = 1 << 20
MAX_CORE_FAILURES = 16
DEADLY_ISOLATIONS = 2  # a request ends with an error when processes failed in so many of its isolations
MAX_UNACKNOWLEDGED_FRAMES = 256  # EngineCoreOutputs in flight to one client before the core coalesces


class Utility(IntEnum):
    """The remote calls that a core answers."""

    STATS = 0  # SchedulerStats as JSON
    CHECK_INVARIANTS = 1  # audits blocks and rows; {} or an error
    DUMP_STATE = 2  # JSON for a person to read; its fields may change
    RESET_PREFIX_CACHE = 3


class RejectReason(IntEnum):
    """What the client does next: correct the request, retry later, use another server, or report the failure."""

    INVALID = 0  # HTTP 400
    OVERLOADED = 1  # HTTP 429
    DRAINING = 2  # HTTP 503
    FAILED = 3  # HTTP 500: an error of the server; the core's log has the details
    EXPIRED = 4  # HTTP 504: accepted, but its ttl_s ended while it waited for its first token


class EngineCoreRequest(Message, frozen=True):
    """Generate, or pool. A request owns the streams request_id .. request_id + n - 1, one per sequence."""

    request_id: StreamId  # assigned by the client, unique on its connection, never reused
    prompt_token_ids: TokenBytes
    sampling_params: SamplingParams
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0
    cache_salt: Annotated[str, Meta(max_length=128)] = ""  # prefixes are shared only between equal salts
    resume_token_ids: Annotated[tuple[TokenBytes, ...], Meta(max_length=MAX_N)] = ()  # each sequence's output so far
    tenant: ShortText = ""  # a digest of its API key; "": no key; tenants share the engine fairly
    weight: Weight = 1.0  # the tenant's share, relative to other tenants
    ttl_s: Ttl = 0.0  # limit of the wait for the first token; 0: none; when resent, the time left
    isolation_tokens: IsolationTokens = 0  # of a candidate in its turn: each sequence runs alone for so many more
    pooling_params: PoolingParams | None = None  # asks for a vector; then `sampling_params` are the defaults
    adapter: Adapter | None = None  # None: the base model
    resumed: bool = False  # it was sent before, to a core that is gone or dropped it: passes a full queue and a drain

    def __post_init__(self) -> None:
        check_int32(self.prompt_token_ids, *self.resume_token_ids)


class AbortRequests(Message, frozen=True):
    """Stop these streams and free their resources; unknown ids are ignored, because abort races with finish.

    Each running stream ends with `finish_reason`: STOP when the client saw a stop string, else ABORT.
    """

    stream_ids: Annotated[tuple[StreamId, ...], Meta(max_length=65536)]
    finish_reason: FinishReason = FinishReason.ABORT


class OutputsReceived(Message, frozen=True):
    """Returns `frames` credits: the client has read that many EngineCoreOutputs from its socket."""

    frames: Count


class UtilityCall(Message, frozen=True):
    """A remote call; answered by UtilityResult with the same call_id."""

    call_id: Count
    utility: Utility


class ClientHeartbeat(Message, frozen=True):
    """Sent at least once per second; the core aborts a client's requests after 10 s of silence."""


class CandidatesWithheld(Message, frozen=True):
    """How many requests the sender withholds because they may have killed a core. Ends the sender's turn, if any."""

    count: Count


ToEngineCore = (
    Hello | EngineCoreRequest | AbortRequests | OutputsReceived | UtilityCall | ClientHeartbeat | CandidatesWithheld
)


class CoreFailure(Record, frozen=True):
    """A crash of a former core that no signal from outside caused: a request may be the cause."""

    epoch: Epoch
    turn: Count  # the isolation turn that was running, whose request caused the crash; 0: none was running


class Welcome(Message, frozen=True):
    """The core is ready; these limits hold until the epoch changes. Answers every Hello, repeated ones included."""

    epoch: Epoch
    max_model_len: Count
    vocab_size: Count
    block_size: Count
    num_blocks: Count
    max_num_seqs: Count
    known: bool = True  # False: the core has no requests of this client, which sends them again
    failures: Annotated[tuple[CoreFailure, ...], Meta(max_length=MAX_CORE_FAILURES)] = ()  # the latest
    arithmetic: ShortText = ""  # what results depend on besides model and request, as text
    tasks: Tasks = ("generate",)  # that the model supports
    embedding_size: Count = 0  # columns of `embed` and `token_embed`; 0: no embeddings
    num_labels: Count = 0  # columns of `classify` and `token_classify`
    eos_token_ids: TokenIds = ()  # the tokens that end a sequence: those of the model and of its tokenizer
    run: ShortText = ""  # of the server: another one at the same address has another name, and its own epochs
    model: ShortText = ""  # a digest of the model's files and settings


class TokenColumns(Record, frozen=True):
    """One new token for each of many streams: the steady state, packed as one bytes object per column.

    Stream stream_ids[i] receives token_ids[i] as output token number first_positions[i] + advance.
    The first two columns repeat from step to step until a stream comes or goes.
    """

    stream_ids: Bytes  # int64
    first_positions: Bytes  # int32
    advance: Step
    token_ids: Bytes  # int32

    def __post_init__(self) -> None:
        check_int32(self.token_ids)
        if not len(self.stream_ids) == 2 * len(self.first_positions) == 2 * len(self.token_ids):
            raise ValueError("columns of different length")


class Logprobs(Record, frozen=True):
    """Log-probabilities of `tokens` consecutive tokens; column 0 is the token itself, then the top k by rank."""

    token_ids: Bytes  # [tokens, k + 1] int32
    logprobs: Bytes  # [tokens, k + 1] float32
    ranks: Bytes  # [tokens] int32, of the token itself; 1 is the most likely

    def __post_init__(self) -> None:
        check_int32(self.ranks)
        check_logprobs(self.token_ids, self.logprobs, len(self.ranks) // 4)


class RequestTimes(Record, frozen=True):
    """How a finished sequence spent its time."""

    queued_s: Seconds
    prefill_s: Seconds
    decode_s: Seconds
    num_preemptions: Count


class EngineCoreOutput(Record, frozen=True):
    """New output of one stream: its output tokens `position`, `position + 1`, …"""

    stream_id: StreamId
    position: Count
    token_ids: TokenBytes
    finish_reason: FinishReason | None = None
    stop_token_id: TokenId | None = None  # the stop_token_ids entry that ended it; None for EOS
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None  # with the first output: one row per prompt token after the first
    num_cached_tokens: Count = 0  # with the first output: prompt tokens found in the prefix cache
    times: RequestTimes | None = None  # with finish_reason
    error: LongText = ""  # with FinishReason.ERROR
    param: ShortText = ""  # with `error`: the parameter of the request that is the cause; "": none is
    pooled: Pooled | None = None  # for a pooling request, which has no tokens; with FinishReason.STOP

    def __post_init__(self) -> None:
        check_int32(self.token_ids)


class EngineCoreOutputs(Message, frozen=True):
    """The output of one step (of several, for a slow client) for one client. Costs one credit."""

    epoch: Epoch
    step: Step
    columns: TokenColumns | None = None
    outputs: Annotated[tuple[EngineCoreOutput, ...], Meta(max_length=65536)] = ()
    stats: SchedulerStats | None = None  # at most every 100 ms


class RequestRejected(Message, frozen=True):
    """The whole request was refused, or expired before its first token; it holds no resources."""

    request_id: StreamId
    reason: RejectReason
    message: LongText
    param: ShortText = ""
    retry_after_s: Seconds = 0.0


class UtilityResult(Message, frozen=True):
    """The answer to one UtilityCall, or the error that prevented it."""

    call_id: Count
    result: Annotated[bytes, Meta(max_length=MAX_UTILITY_BYTES)]  # JSON
    error: LongText = ""


class EngineFailed(Message, frozen=True):
    """The core is about to exit; all streams of this epoch end without a finish reason."""

    reason: LongText


class EngineHeartbeat(Message, frozen=True):
    """Sent from the core's main loop at least every 250 ms, so that idle clients also know that it is alive."""

    step: Step
    stats: SchedulerStats | None = None
    computes: bool = True  # False: the workers are lost and not yet replaced; a change is sent at once


class IsolationTurn(Message, frozen=True):
    """The client may send one withheld request; nothing else is computed until its next CandidatesWithheld."""

    epoch: Epoch
    turn: Annotated[int, Meta(ge=1, le=2**31 - 1)]  # counts in this epoch


FromEngineCore = (
    Welcome
    | Refused
    | EngineCoreOutputs
    | RequestRejected
    | UtilityResult
    | EngineFailed
    | EngineHeartbeat
    | IsolationTurn
)
