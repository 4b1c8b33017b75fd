"""The only way into the engine: decides whether a request is refused, and with which outputs it starts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from paged_serve.protocol.errors import InvalidRequest, Overloaded
from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.messages.engine_core import EngineCoreRequest, RejectReason, RequestRejected
from paged_serve.protocol.plugins import PluginKind, plugin_names

from ..kv.kv_cache import KVCache
from ..requests.request import Request, Sequence
from ..requests.tenant import Tenant
from .abandoned_requests import AbandonedRequests
from .backlog import Backlog, Isolation
from .capacity import Capacity
from .core_poison import CorePoison
from .deadlines import Deadlines
from .forecast import Forecast
from .resumptions import Resumptions
from .validation import ModelFacts, Validation


class ClientStreams(Protocol):
    """The streams of one client in the engine."""

    @property
    def streams(self) -> Mapping[int, Sequence]: ...
    @property
    def num_ended_pending(self) -> int: ...
    def running(self, message: EngineCoreRequest) -> Request | None:
        """The request that `message` repeats."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Admitted:
    """An accepted request. `message` has its first outputs: its own, or those of an equal abandoned request."""

    request: Request
    message: EngineCoreRequest
    is_reused: bool


class Admission:
    """Applies all checks to a request before it reaches the scheduler."""

    def __init__(self, config: Config, facts: ModelFacts, cache: KVCache, backlog: Backlog, isolation: Isolation):
        limits = config.scheduler
        self.draining = False
        self.deadlines = Deadlines()
        self.forecast = Forecast(backlog)
        self.capacity = Capacity(backlog, limits, self.forecast)
        self.core_poison = CorePoison(isolation, limits.max_num_queued_requests)
        self.abandoned = AbandonedRequests()
        self.resumptions = Resumptions(most=2 * (limits.max_num_seqs + limits.max_num_queued_requests))
        self._shares = backlog.shares
        self._max_unread = limits.max_num_queued_requests
        self._validation = Validation(
            facts,
            cache,
            seed=config.model.seed,
            use_priority=limits.policy == "priority",
            max_logprobs=config.server.max_logprobs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            logits_processors=plugin_names(PluginKind.LOGITS_PROCESSOR, config.model.plugins),
            max_loras=config.lora.max_loras,
        )
        self._num_arrivals = 0

    def admit(
        self, client: bytes, message: EngineCoreRequest, own: ClientStreams, now: float
    ) -> Admitted | list[tuple[bytes, RequestRejected]]:
        """The request, with its sequences not queued yet, or rejections; none for a repeated or deferred request."""
        if not self.core_poison.admits(client, message):
            return self.core_poison.defer(client, message, now)
        if (running := own.running(message)) is not None:
            self.core_poison.isolate(running, message)
            return []
        tenant = self._shares.of(message.tenant, message.weight)
        try:
            self._check_room(own, tenant, message)
            request = self._validation.request(client, message, tenant, self._num_arrivals, now)
        except (InvalidRequest, Overloaded) as refusal:
            return [(client, _rejected(message.request_id, refusal))]
        with_reused = self.abandoned.reuse(request, message, now)
        self._num_arrivals += 1
        self.deadlines.add(request)
        self.forecast.arrived(request, now)
        return Admitted(request, with_reused, with_reused is not message)

    def client_removed(self, client: bytes, requests: list[Request], now: float) -> None:
        """Keep the outputs of a client that is gone: it, or another client, may repeat the same requests."""
        self.core_poison.remove(client)
        self.resumptions.lost(len(requests))
        for request in requests:
            self.abandoned.keep(request, now)

    def _check_room(self, own: ClientStreams, tenant: Tenant, message: EngineCoreRequest) -> None:
        """Check the queue's limits. A resumed request was accepted before and passes, if plausible."""
        if any(message.request_id + index in own.streams for index in range(message.sampling_params.n)):
            raise InvalidRequest(f"a stream of request_id {message.request_id} is already in use", "request_id")
        if message.resumed and self.resumptions.take():
            return
        if self.draining:
            raise Overloaded("the server is shutting down", draining=True)
        self.capacity.check(tenant, message)
        if own.num_ended_pending >= self._max_unread:
            raise Overloaded(f"{own.num_ended_pending} ended streams wait until this client reads its outputs")


def _rejected(request_id: int, refusal: InvalidRequest | Overloaded) -> RequestRejected:
    if isinstance(refusal, InvalidRequest):
        return RequestRejected(request_id, RejectReason.INVALID, refusal.message, refusal.param or "")
    reason = RejectReason.DRAINING if refusal.draining else RejectReason.OVERLOADED
    return RequestRejected(request_id, reason, refusal.message, retry_after_s=refusal.retry_after_s)
