"""A request, its sequences, and the state machine of a sequence."""

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, auto

from paged_serve.protocol.block_hash import TOKEN_BYTES
from paged_serve.protocol.messages.engine_core import RequestTimes
from paged_serve.protocol.messages.loading.adapters import Adapter
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.pooling_params import PoolingParams
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.state_machine import fire

from .prompt_logprobs import PromptLogprobs
from .speculating import DraftHistory, Speculating
from .tenant import Tenant


class SequenceState(Enum):
    WAITING = auto()  # never ran
    RUNNING = auto()  # owns a row and blocks
    PREEMPTED = auto()  # ran, released its row and blocks, keeps its output
    FINISHED = auto()


class SequenceEvent(Enum):
    SCHEDULE = auto()
    PREEMPT = auto()  # out of blocks, its tenant is ahead, or the workers were replaced
    FINISH = auto()


TRANSITIONS = {
    (SequenceState.WAITING, SequenceEvent.SCHEDULE): SequenceState.RUNNING,
    (SequenceState.PREEMPTED, SequenceEvent.SCHEDULE): SequenceState.RUNNING,
    (SequenceState.RUNNING, SequenceEvent.PREEMPT): SequenceState.PREEMPTED,
    (SequenceState.WAITING, SequenceEvent.FINISH): SequenceState.FINISHED,  # aborted before it ever ran
    (SequenceState.PREEMPTED, SequenceEvent.FINISH): SequenceState.FINISHED,
    (SequenceState.RUNNING, SequenceEvent.FINISH): SequenceState.FINISHED,
}


@dataclass(slots=True, eq=False)
class Request:
    """One prompt with `params.n` sequences; with `pooling`, one sequence that ends with a vector."""

    client: bytes
    request_id: int
    prompt: bytes  # int32
    params: SamplingParams
    params_bytes: int  # as each sequence's NewRow carries them; a list of allowed tokens may take a megabyte
    arrival_s: float
    chain_root: bytes  # parent of the first block's hash
    tenant: Tenant
    arrival: int = 0  # counts requests
    deadline_s: float = math.inf  # must be scheduled by then, else it expires
    sequences: "list[Sequence]" = field(default_factory=list)
    leader: "Sequence | None" = None  # computes prompt blocks that its siblings will share
    followers: "list[Sequence]" = field(default_factory=list)  # siblings that wait for the leader, outside the queue
    fork: "Sequence | None" = None  # before the step being planned, its states are those after the shareable tokens
    prompt_logprobs: PromptLogprobs = field(default_factory=PromptLogprobs)
    pooling: PoolingParams | None = None
    needs_whole_prompt: bool = False  # the prefix cache may not replace any of its tokens
    adapter: Adapter | None = None  # None: the base model
    place: int = 0  # of the adapter, while it is loaded

    @property
    def live(self) -> "list[Sequence]":
        return [sequence for sequence in self.sequences if sequence.state is not SequenceState.FINISHED]

    @property
    def sharer(self) -> "Sequence | None":
        """A running sequence whose blocks hold the whole prompt; called only while no sequence computes it."""
        return self.sharer_besides(())

    def sharer_besides(self, excluded: "Collection[Sequence]") -> "Sequence | None":
        """The same once the `excluded` ones no longer run."""
        if len(self.sequences) == 1:
            return None
        running = (each for each in self.sequences if each.state is SequenceState.RUNNING)
        return next((each for each in running if each not in excluded), None)

    @property
    def prompt_len(self) -> int:
        return len(self.prompt) // TOKEN_BYTES

    def take_followers(self, leader: "Sequence") -> "list[Sequence]":
        """The siblings that wait for `leader`, which has planned the shared prompt or lost its row; none for others."""
        if self.leader is not leader:
            return []
        followers, self.leader, self.followers = self.followers, None, []
        return followers

    @property
    def num_shareable_tokens(self) -> int:
        """All prompt tokens but the last one, which each sequence computes itself."""
        return self.prompt_len - 1


@dataclass(slots=True, eq=False)
class Sequence:
    """One output of a request; the unit of scheduling.

    Layout of its tokens while it runs (K and V are written left to right):
      [0, shared prefix) | [.., num_scheduled) planned in chunks | [.., prefill_len) known | then one a decode step,
      or one and more a verification
    """

    request: Request
    index: int
    seed: int
    order: tuple[int, int, int]  # the policy's order; smaller is served first and preempted last
    output: list[int]  # applied tokens; those that a former core delivered come first
    token_limit: int  # most tokens of prompt and output together
    stop_ids: frozenset[int]  # EOS and the request's own
    eos_ids: frozenset[int]
    block_hashes: list[bytes]  # of the full blocks hashed so far
    state: SequenceState = SequenceState.WAITING
    row: int = -1
    block_tables: tuple[list[int], ...] = ()  # one for each KV group, by position
    num_released: list[int] = field(default_factory=list)  # blocks behind the window, per table
    prefill_len: int = 0  # tokens known when it was admitted; after them it takes one token per step
    num_scheduled: int = 0  # tokens of prefill_len that are planned or shared
    num_applied: int = 0  # tokens of prefill_len that are applied or shared
    num_decoded: int = 0  # decode steps that were planned for it when it left the decode set
    num_published: int = 0  # blocks offered to the prefix cache, or taken from it
    tail_hash: bytes = b""  # of the partial block that the prefix cache was last offered
    joined_step: int = 0  # first step in the decode set; 0: not in it
    speculating: Speculating | None = None  # instead of decoding: its tokens come from verifications
    num_cached_tokens: int = -1  # prompt tokens not computed at first admission by these workers; -1: not admitted yet
    num_preemptions: int = 0
    num_yielded: int = 0  # of them, in favour of another sequence
    has_yielded: bool = False  # and has not run since
    num_passed: int = 0  # sequences admitted though they were behind it in the queue
    passed: "Sequence | None" = None  # the first in the queue when it was admitted out of order
    num_nans: int = 0  # results that were not finite
    num_loads: int = 0  # attempts to load a part of its prefix from a tier
    draft_history: DraftHistory = field(default_factory=DraftHistory)
    scheduled_s: float | None = None
    first_token_s: float | None = None

    @property
    def stream_id(self) -> int:
        return self.request.request_id + self.index

    @property
    def num_tokens(self) -> int:
        return self.request.prompt_len + len(self.output)

    @property
    def num_kv_applied(self) -> int:
        """Tokens whose K and V are certainly in the cache, because the result of their step was applied."""
        return self.num_tokens - 1 if self.num_tokens > self.prefill_len else self.num_applied

    @property
    def num_planned(self) -> int:
        """Tokens that the steps planned so far compute. Not in the decode set, and not with drafts in flight."""
        return self.num_scheduled + self.num_decoded

    @property
    def span(self) -> tuple[int, int]:
        """The next position to compute, and the tokens whose K and V need places. Not in the decode set."""
        return (self.num_scheduled, self.prefill_len) if self.speculating is None else self.speculating.span

    def lose_blocks(self) -> None:
        """The workers died, and with them all that they had computed and cached."""
        self.block_tables, self.num_released = (), []
        if not self.output:
            self.num_cached_tokens = -1  # no client has read it, and the whole prompt is computed again

    def begin_speculating(self, next_step: int) -> None:
        """Its last chunk is planned, or it has just left the decode set, which it had joined in `joined_step`."""
        num_decoded = next_step - self.joined_step if self.joined_step else 0
        self.speculating = Speculating(self.prefill_len + 1 + num_decoded)

    def end_speculating(self) -> None:
        """Its length is certain, so it may join the decode set as after a prefill of all tokens but the last."""
        assert self.speculating is not None
        assert not self.speculating.num_drafts, f"stream {self.stream_id} has drafts in flight"
        self.num_applied = self.num_kv_applied
        self.prefill_len = self.num_scheduled = self.speculating.shortest - 1
        self.speculating = None

    @property
    def last_step(self) -> int:
        """The decode step that samples its last token by length. Only in the decode set."""
        return self.joined_step + self.token_limit - self.prefill_len - 2

    def next_block_step(self, block_size: int) -> int:
        """The decode step that needs another block in each group. Only in the decode set."""
        return self.joined_step + len(self.block_tables[0]) * block_size - self.prefill_len

    @property
    def plain(self) -> bool:
        """Whether a decode step outputs only a token, and the token alone decides whether the sequence ends."""
        params = self.request.params
        return params.logprobs is None and params.repetition_detection is None

    @property
    def may_read_cache(self) -> bool:
        """Whether blocks from the prefix cache may replace its own computation."""
        params = self.request.params
        logprobs_missing = params.prompt_logprobs is not None and not self.request.prompt_logprobs.complete(
            self.request.prompt_len
        )
        skips = params.skip_reading_prefix_cache or self.request.needs_whole_prompt
        return not (skips or logprobs_missing or self.num_nans)

    def token_bytes(self, start: int, end: int) -> bytes:
        """Tokens [start, end) of prompt and output as int32."""
        prompt_len = self.request.prompt_len
        prompt = self.request.prompt[start * TOKEN_BYTES : end * TOKEN_BYTES]
        if end <= prompt_len:
            return prompt
        return prompt + pack_ids(self.output[max(0, start - prompt_len) : end - prompt_len])

    def record_yield(self) -> None:
        self.num_yielded += 1
        self.has_yielded = True

    def fire(self, event: SequenceEvent) -> None:
        """Raises IllegalTransition, and changes nothing, when `event` cannot happen now."""
        self.state = fire(TRANSITIONS, self.state, event, f"stream {self.stream_id}")

    def times(self, now: float) -> RequestTimes:
        """How long the sequence was queued, in prefill and in decode; called at its end."""
        scheduled = now if self.scheduled_s is None else self.scheduled_s
        first_token = now if self.first_token_s is None else self.first_token_s
        return RequestTimes(
            queued_s=max(0.0, scheduled - self.request.arrival_s),
            prefill_s=max(0.0, first_token - scheduled),
            decode_s=max(0.0, now - first_token),
            num_preemptions=self.num_preemptions,
        )
