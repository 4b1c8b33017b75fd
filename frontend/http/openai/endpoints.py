"""The generating endpoints: their common steps, and what differs between chat and completions."""

import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.loading.adapters import Adapter

from ...buffer_budget import Lease
from ...client.request_terms import RequestTerms
from ..exchange.auth import Tenant
from ..exchange.errors import HttpError
from ..exchange.exchange import Exchange
from ..exchange.sse import AnswerHead
from ..service import Service
from .chat import ChatWriter, chat_prompt
from .completions import CompletionWriter, completion_prompts
from .generation import Generation, Prompt
from .request.custom_tools import WithCustomTools, translate
from .request.schemas import ChatCompletionRequest, CompletionRequest, SamplingFields, with_logprobs, with_vocabulary
from .selection.beams import BeamGeneration, beam_params
from .selection.best_of import BestOfGeneration, with_best_of
from .streaming.output_memory import OutputMemory


class Writer(Protocol):
    async def answer(self, head: AnswerHead) -> msgspec.Struct: ...
    def frames(self, head: AnswerHead) -> AsyncGenerator[list[bytes], None]: ...


class Work(Protocol):
    """The engine's work for one request: a Generation or vectors."""

    answer_id: str  # the operator may know the request by it

    async def submit(self) -> None: ...
    def close(self) -> None: ...


class Terms(Protocol):
    """The fields of a body that affect how it is scheduled among other requests."""

    @property
    def priority(self) -> int | None: ...
    @property
    def cache_salt(self) -> str | None: ...
    @property
    def timeout(self) -> float | None: ...
    @property
    def model(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A generating route: the type of its body, its translation into prompts, and the writer of its answer."""

    prefix: str  # of the ids of answers, with its separator
    body: type[Any]
    prompts: Callable[[Service, Any, bytes, int], Awaitable[list[Any]]]  # (…, JSON of the body, answer's moment)
    writer: Callable[[Service, Any, list[Any], Any], Writer]
    answer_id: str | None = None  # None: derived from the request's id
    # Translates the JSON of another API: (JSON, whether the server is lenient) -> (JSON of `body`, warnings)
    translate: Callable[[bytes, bool], tuple[bytes, list[str]]] | None = None

    async def decode(self, service: Service, raw: bytes) -> tuple[Any, bytes, str, list[str]]:
        """(body, its JSON, model's name, warnings). Raises HttpError or InvalidRequest."""
        translated = list[str]()
        if self.translate is not None:
            raw, translated = await service.off_loop(len(raw), self.translate, raw, service.config.server.lenient)
        body, model, warnings = await service.decoded(self.body, raw)
        options = body.stream_options
        if options is not None and (options.include_usage or options.continuous_usage_stats) and not body.stream:
            raise HttpError(400, "stream_options needs stream to be true", "stream_options")
        body = with_logprobs(with_vocabulary(body, service.engine.limits.vocab_size))
        return body, raw, model, translated + warnings

    def begin(
        self, service: Service, sender: "Sender", body: Any, prompts: list[Any], lease: Lease, *, in_turn: bool = False
    ) -> "Work":
        """Raises Overloaded or InvalidRequest."""
        adapter = service.adapter_of(body.model)
        return generation_of(service, sender, body, adapter, prompts, lease, in_turn=in_turn)


async def _chat_prompts(service: Service, body: ChatCompletionRequest, raw: bytes, moment: int) -> list[Prompt]:
    return [await chat_prompt(service, body, raw, moment)]


COMPLETION = Endpoint("cmpl-", CompletionRequest, completion_prompts, CompletionWriter)
CHAT_COMPLETION = Endpoint("chatcmpl-", WithCustomTools, _chat_prompts, ChatWriter, translate=translate)


class Sender(Protocol):
    """The sender of a request: an exchange, or a stored response that runs without a connection."""

    @property
    def tenant(self) -> Tenant: ...
    @property
    def arrival(self) -> float: ...
    @property
    def request_id(self) -> str: ...
    def timeout_s(self) -> float | None: ...


def _cache_salt(service: Service, sender: Sender, asked: str) -> str:
    """The cache salt, different for each API key: cache hits would reveal to one caller the prompts of another."""
    if not sender.tenant.name or service.config.cache.share_prefixes:
        return asked
    return hashlib.sha256(f"{sender.tenant.name} {asked}".encode()).hexdigest()


def terms_of(service: Service, sender: Sender, body: Terms, adapter: Adapter | None) -> RequestTerms:
    return RequestTerms(
        priority=body.priority or 0,
        cache_salt=_cache_salt(service, sender, body.cache_salt or ""),
        tenant=sender.tenant.name,
        weight=sender.tenant.weight,
        timeout_s=body.timeout or sender.timeout_s() or 0.0,
        adapter=adapter,
    )


def check_time_limit(service: Service, exchange: Exchange, body: Terms) -> None:
    """Raises Overloaded when the request's time limit cannot be met."""
    service.admission.check_time_limit(exchange.tenant.name, body.timeout or exchange.timeout_s() or 0.0)


def generation_of(
    service: Service,
    sender: Sender,
    body: SamplingFields,
    adapter: Adapter | None,
    prompts: list[Prompt],
    lease: Lease,
    *,
    in_turn: bool = False,
) -> Generation:
    """The generation of a request; `lease` covers its memory from now on. Raises Overloaded or InvalidRequest."""
    if body.timings_per_token and in_turn:
        raise InvalidRequest(
            "timings_per_token is true: the answer to a request with an Idempotency-Key has the same bytes whenever it "
            "is made, so it shows no times; leave one of the two out",
            "timings_per_token",
        )
    shows_prompt = bool(body.return_token_ids or getattr(body, "echo", False))
    n, best_of = prompts[0].params.n, getattr(body, "best_of", None) or 0
    generated = with_best_of(prompts, best_of) if best_of > n else prompts
    memory = OutputMemory(
        lease,
        [(len(each.token_ids), each.params) for each in generated],
        keeps=not body.stream or getattr(body, "repeats_output", False),
        shows_prompt=shows_prompt,
    )
    terms = terms_of(service, sender, body, adapter)
    interval = (body.stream_interval or 1) if body.stream else 1
    request_id = body.request_id or sender.request_id
    others = terms, request_id, sender.arrival, memory, in_turn, interval
    if getattr(body, "use_beam_search", None):
        return BeamGeneration(service, prompts, [beam_params(service, body, each) for each in prompts], *others)
    if best_of > n:
        return BestOfGeneration(service, generated, prompts[0].params, *others)
    return Generation(service, prompts, *others)
