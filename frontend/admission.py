"""Refuses requests before they reach the engine: prompts that can never fit, and more requests than the queue holds."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from paged_serve.protocol.errors import InvalidRequest, Overloaded
from paged_serve.protocol.messages.sampling_params import MAX_ALLOWED_TOKEN_IDS, SamplingParams
from paged_serve.protocol.messages.stats import SchedulerStats
from paged_serve.protocol.messages.structured_outputs import MAX_GRAMMAR_CHARS

MAX_SEQUENCES_PER_REQUEST = 256  # prompts x n
MAX_TOKENS_PER_REQUEST = 1 << 20  # of all prompts, or of one at the model's limit; 40 MB of memory
MAX_PROMPT_LOGPROBS = 1 << 17  # about 6 MB of JSON, written in one piece
MAX_SHOWN_PROMPT_TOKENS = 1 << 20  # about 6 MB of JSON again
DRAIN_RETRY_S = 5.0
FULL_RETRY_S = 1.0


def shutting_down() -> Overloaded:
    """The error of requests that a draining server refuses, or can no longer finish."""
    return Overloaded("The server is shutting down; retry in a moment.", DRAIN_RETRY_S, draining=True)


class ContextExceeded(InvalidRequest):
    """The prompt, or the prompt and the requested output, exceed the model's context."""


class PromptTooLong(ContextExceeded):
    """The prompt alone exceeds the context; `num_tokens` is its length, or a lower bound."""

    def __init__(self, message: str, field: str, num_tokens: int, max_model_len: int):
        super().__init__(message, field)
        self.num_tokens = num_tokens
        self.max_model_len = max_model_len


def fitting_max_tokens(
    length: int,
    asked: int | None,
    default: int | None,
    max_model_len: int,
    field: str,
    asked_field: str = "max_tokens",
) -> int | None:
    """The output limit that fits after a prompt of `length` tokens; None: until the context is full.

    Only the default is reduced silently; a limit in the request that does not fit raises ContextExceeded.
    """
    if not length:
        raise InvalidRequest(f"{field} is empty; give at least one token of text", field)
    room = max_model_len - length
    limit = f"This model's maximum context length is {max_model_len} tokens"
    if room <= 0:
        raise PromptTooLong(
            f"{limit}; the request has {length} in the {field} and needs room for at least one more. Shorten it",
            field,
            length,
            max_model_len,
        )
    if asked is not None and asked > room:
        raise ContextExceeded(
            f"{limit}; the request has {length} in the {field} and asks for {asked} more. "
            f"Shorten the {field} or ask for at most {room}",
            asked_field,
        )
    return asked if asked is not None or default is None else min(default, room)


def too_many_tokens(at_least: int, text: str, max_model_len: int, field: str) -> PromptTooLong:
    return PromptTooLong(
        f"This model's maximum context length is {max_model_len} tokens; the request has at least {at_least} "
        f"in the {field} ({len(text)} characters). Shorten it",
        field,
        at_least,
        max_model_len,
    )


def check_token_ids(ids: Sequence[int], vocab_size: int, field: str) -> None:
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        wrong = next(token for token in ids if not 0 <= token < vocab_size)
        raise InvalidRequest(f"{field} has token {wrong}; the vocabulary is 0..{vocab_size - 1}", field)


def check_num_sequences(num_prompts: int, n: int) -> None:
    if num_prompts * n > MAX_SEQUENCES_PER_REQUEST:
        raise InvalidRequest(
            f"{num_prompts} prompts with n={n} make {num_prompts * n} sequences; "
            f"a request may have at most {MAX_SEQUENCES_PER_REQUEST}",
            "n",
        )


def check_num_named_tokens(params: SamplingParams, num_prompts: int) -> None:
    """Limit the lists of token ids and the grammar, of which each prompt carries a copy to the engine."""
    for field, count in (
        ("allowed_token_ids", len(params.allowed_token_ids or ())),
        ("bad_words", sum(map(len, params.bad_words_token_ids))),
        ("dry_sequence_breakers", 0 if params.dry is None else len(params.dry.breaker_token_ids)),
    ):
        if count * num_prompts > MAX_ALLOWED_TOKEN_IDS:
            raise InvalidRequest(
                f"{field} has {count} tokens for each of {num_prompts} prompts; "
                f"a request may have at most {MAX_ALLOWED_TOKEN_IDS} in total",
                field,
            )
    grammar = 0 if params.grammar is None else len(params.grammar.source)
    if grammar * num_prompts > MAX_GRAMMAR_CHARS:
        raise InvalidRequest(
            f"structured_outputs makes a grammar of {grammar} characters for each of {num_prompts} prompts; "
            f"a request may have at most {MAX_GRAMMAR_CHARS} in total",
            "structured_outputs",
        )


def check_num_prompt_logprobs(params: SamplingParams, num_tokens: int) -> None:
    """`num_tokens`: of the prompts of all choices, each of which shows its own."""
    count = num_tokens * (1 + (params.prompt_logprobs or 0))
    if params.prompt_logprobs is not None and count > MAX_PROMPT_LOGPROBS:
        raise InvalidRequest(
            f"{count} log-probabilities of prompt tokens exceed the limit of one answer; "
            f"at most {MAX_PROMPT_LOGPROBS} are allowed. Ask for fewer logprobs, prompts or choices",
            "prompt_logprobs",
        )


def check_num_shown_prompt_tokens(num_tokens: int, field: str) -> None:
    """`num_tokens`: of the prompts of all choices, each of which shows its own."""
    if num_tokens > MAX_SHOWN_PROMPT_TOKENS:
        raise InvalidRequest(
            f"{field} would show {num_tokens} tokens of prompts; at most {MAX_SHOWN_PROMPT_TOKENS} are shown in one "
            "answer. Ask for fewer choices or prompts",
            field,
        )


@dataclass(slots=True)
class _Active:
    """The requests in progress of one tenant."""

    weight: float
    count: int = 0


class Admission:
    """Counts the requests in progress, and admits no more while the server drains or is full.

    A request that the engine would refuse is refused here, before its body is read: the engine's figures, about
    100 ms old, show which tenants have used up their share of the queue. The frontend's limit applies while the engine
    is down and accepted requests wait here; like the engine's queue, a full frontend is full only for the tenants that
    fill it.
    """

    def __init__(self, max_active: int, stats: Callable[[], SchedulerStats | None] = lambda: None) -> None:
        self.num_active = 0
        self.num_reading = 0
        self._max_active = max_active
        self._stats = stats  # None: the engine is away
        self._active: dict[str, _Active] = {}  # by tenant
        self.draining = False

    def check(self, tenant: str = "", weight: float = 1.0) -> None:
        """Raises Overloaded for a request that would be refused now. Does not count it: its body may never arrive."""
        self.check_draining()
        self._check_engine(tenant)
        if self.num_active >= self._max_active:
            self._check_share(tenant, weight)

    def check_draining(self) -> None:
        """Raises Overloaded while the server drains."""
        if self.draining:
            raise shutting_down()

    @contextlib.contextmanager
    def entered(self, tenant: str = "", weight: float = 1.0, *, is_accepted: bool = False) -> Iterator[None]:
        """Context that counts a fully received request while it is being answered. Raises Overloaded like `check`.

        `is_accepted`: an earlier process accepted the request, so it is not refused now.
        """
        if not is_accepted:
            self.check(tenant, weight)
        active = self._active.setdefault(tenant, _Active(weight))
        active.count += 1
        self.num_active += 1
        try:
            yield
        finally:
            self.num_active -= 1
            active.count -= 1
            if not active.count:
                del self._active[tenant]

    def check_time_limit(self, tenant: str, timeout_s: float) -> None:
        """Refuse a request whose time limit would end while it waits, before spending time on tokenizing it."""
        stats = self._stats()
        if not timeout_s or stats is None:
            return
        wait_s = next((queue.wait_s for queue in stats.tenants if queue.tenant == tenant), stats.wait_s)
        if wait_s > timeout_s:
            raise Overloaded(
                f"timeout={timeout_s:.3g}: the first token is expected in about {wait_s:.3g} s, as "
                f"{stats.num_waiting} sequences are waiting. Allow more time, or retry later",
                wait_s - timeout_s,
            )

    def _check_engine(self, tenant: str) -> None:
        stats = self._stats()
        for queue in () if stats is None else stats.tenants:
            if queue.is_full and queue.tenant == tenant:
                raise Overloaded(
                    f"{queue.num_queued} sequences wait already, which fills the queue"
                    f"{' share of this API key' if tenant else ''}; retry later.",
                    queue.wait_s,
                )

    def _check_share(self, tenant: str, weight: float) -> None:
        others = sum(active.weight for name, active in self._active.items() if name != tenant)
        own = self._active[tenant].count if tenant in self._active else 0
        if own and own >= self._max_active * weight / (weight + others):
            raise Overloaded(
                f"The server is answering {self.num_active} requests already; retry in a moment.", FULL_RETRY_S
            )

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Context that counts the reader of an answer admitted earlier: never refused, but a stop waits for it."""
        self.num_reading += 1
        try:
            yield
        finally:
            self.num_reading -= 1

    @property
    def drained(self) -> bool:
        return self.draining and not self.num_active and not self.num_reading
