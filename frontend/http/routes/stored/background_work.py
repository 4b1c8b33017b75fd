"""Computes background responses, identically in the process that accepted them and in any later process."""

import logging
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing

import msgspec

from paged_serve.protocol.errors import EngineDead, InvalidRequest, PagedServeError, RequestFailed
from paged_serve.protocol.messages.loading.adapters import Adapter

from ....conversation.strict_json import decode_body
from ...exchange.auth import Tenant
from ...exchange.errors import http_error
from ...exchange.sse import AnswerHead
from ...openai.endpoints import generation_of
from ...openai.generation import Generation, Prompt
from ...openai.request.schemas import with_vocabulary
from ...responses.answers import Response, ResponseError
from ...responses.writer import ResponseWriter, event
from ...service import Service
from ...stored_responses.background_run import Ended
from ...stored_responses.database import Row
from ..responses import RESPONSES, ChatSource, TranslatedResponsesRequest

log = logging.getLogger(__name__)


class Job(msgspec.Struct, frozen=True):
    """The stored request of a background response."""

    body: str  # JSON of a TranslatedResponsesRequest
    model: str
    warnings: list[str]
    fingerprint: str  # of the server that accepted it; with another one, the output would have other bytes
    adapter: Adapter | None = None  # None: the base model; its name may be unloaded, or of another one, meanwhile


class BackgroundSender:
    """The sender of a request without a connection."""

    def __init__(self, tenant: Tenant, request_id: str):
        self.tenant, self.request_id = tenant, request_id
        self.arrival = time.monotonic()

    def timeout_s(self) -> float | None:
        return None


class BackgroundWork:
    """Produces the events of one background response. `ended`: the response, once it has ended."""

    def __init__(
        self,
        service: Service,
        tenant: Tenant,
        head: AnswerHead,
        body: TranslatedResponsesRequest,
        adapter: Adapter | None,
        prompts: list[Prompt],
    ):
        self.ended: Ended | None = None
        self._service, self._sender = service, BackgroundSender(tenant, head.answer_id)
        self._head, self._body, self._adapter, self._prompts = head, body, adapter, prompts
        self._writer: ResponseWriter
        self._num_made = 0  # events, since the last beginning
        self._leased = ExitStack()
        self._begun: tuple[Generation, ResponseWriter] | None = self._begin()

    @classmethod
    async def prepared(cls, service: Service, tenant: Tenant, row_id: str, created: int, job: Job) -> "BackgroundWork":
        """Raises InvalidRequest or HttpError if the request is refused, Overloaded if there is no memory for it."""
        raw = job.body.encode()
        body, _ = await service.off_loop(len(raw), decode_body, TranslatedResponsesRequest, raw, False)
        body = with_vocabulary(body, service.engine.limits.vocab_size)
        prompts = await RESPONSES.prompts(service, body, raw, created)
        head = AnswerHead(row_id, job.model, [*job.warnings, *prompts[0].warnings], created)
        return cls(service, tenant, head, body, job.adapter, prompts)

    def queued(self) -> Response:
        return self._writer.queued(self._head)

    async def events(self) -> AsyncGenerator[list[bytes], None]:
        """All events, from the first one. May be called again after Overloaded."""
        generation, writer = self._begun or self._begin()
        self._begun, self._num_made = None, 0
        try:
            await generation.submit()
            async with aclosing(writer.frames(self._head)) as batches:
                async for batch in batches:
                    self._num_made += len(batch)
                    yield batch
        except EngineDead as error:
            if self._service.engine.failure is None:  # only this request has failed; no other process will continue it
                raise RequestFailed(str(error)) from error
            raise
        finally:
            generation.close()
            self._leased.close()

    def given_up(self, error: PagedServeError | None, num_kept: int) -> tuple[Ended, list[bytes]]:
        self.close()
        shown = None
        if error is not None:
            answer = http_error(error, self._head.answer_id)
            if answer.status == 500:
                log.error("failed response=%s: %s", self._head.answer_id, error)
            is_theirs = isinstance(error, InvalidRequest)
            shown = ResponseError(code="invalid_prompt" if is_theirs else "server_error", message=answer.message)
        response, events = self._writer.given_up(self._head, shown)
        end = ended(response)
        if self._num_made < num_kept:  # of events made again, only the end can follow those kept
            events = [] if error is None else [failed_event(num_kept, end)]
        return end, events

    def close(self) -> None:
        """Free its resources, even if `events` was never called."""
        if self._begun is not None:
            self._begun[0].close()
            self._begun = None
        self._leased.close()

    def _begin(self) -> tuple[Generation, ResponseWriter]:
        lease = self._leased.enter_context(self._service.buffers.lease(self._sender.tenant.name))
        try:
            generation = generation_of(
                self._service, self._sender, self._body, self._adapter, self._prompts, lease, in_turn=True
            )
        except BaseException:
            self._leased.close()
            raise
        generation.answer_id = self._head.answer_id
        source = ChatSource(self._service, self._body, self._prompts[0], generation)
        self._writer = ResponseWriter(source, self._body.asked, self._keep)
        return generation, self._writer

    async def _keep(self, response: Response) -> None:
        self.ended = ended(response)


def ended(response: Response) -> Ended:
    """The stored form of a response, with the items to which later requests may refer."""
    return Ended(msgspec.json.encode(response), [(item.id, msgspec.json.encode(item)) for item in response.output])


def failed_event(number: int, end: Ended) -> bytes:
    """The last event of the stream of a failed response."""
    return event("response.failed", number, {"response": msgspec.Raw(end.response)})


def row_of(caller: bytes, response: Response, body: TranslatedResponsesRequest) -> Row:
    return Row(
        caller=caller,
        id=response.id,
        created=response.created_at,
        previous=body.asked.previous_response_id,
        input=msgspec.json.encode(body.given),
        response=msgspec.json.encode(response),
    )
