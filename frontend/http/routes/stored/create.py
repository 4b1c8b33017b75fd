"""POST /v1/responses with stored responses: continues stored conversations and stores the answer."""

import functools
import time
from contextlib import ExitStack, nullcontext
from dataclasses import replace

import msgspec

from ...exchange.errors import HttpError
from ...exchange.exchange import Exchange
from ...exchange.memory_costs import DECODED_PER_BYTE
from ...idempotency.keys import KeyedRequest, idempotency_key, request_digest
from ...openai.endpoints import Endpoint, check_time_limit, decode
from ...openai.generation import Generation, Prompt
from ...responses.answers import Response
from ...responses.chat_request import Earlier
from ...responses.writer import ResponseWriter
from ...service import Service
from ...stored_responses.background_run import BackgroundRun
from ...stored_responses.database import Row
from ...stored_responses.store import StoredResponses
from ..generate import create_answer
from ..responses import RESPONSES, ChatSource, TranslatedResponsesRequest, translate
from .background_work import BackgroundWork, Job, ended, row_of
from .earlier_responses import earlier_of, references_of
from .retrieve import send_response, send_stream


async def create_response(service: Service, exchange: Exchange) -> None:
    """Answer a conversation, with OpenAI's Responses API."""
    store = service.stored
    if store is None:
        await create_answer(service, exchange, RESPONSES)
        return
    key = idempotency_key(exchange.headers)
    if key is None or not service.answers.has_key(exchange.caller, key):
        service.admission.check(exchange.tenant.name, exchange.tenant.weight)
    raw, caller = await exchange.peek(), store.caller_of(exchange.tenant)
    asked = await service.off_loop(len(raw), references_of, raw)
    earlier = await earlier_of(store, caller, asked, lambda size: exchange.lease.grow(DECODED_PER_BYTE * size))
    endpoint = _endpoint(store, caller, earlier)
    if not asked.background:
        await create_answer(service, exchange, endpoint)
        return
    raw = await exchange.body()
    with service.admission.reading():
        async with exchange.until_disconnect():
            await _answer_in_background(service, exchange, store, endpoint, raw)


def _endpoint(store: StoredResponses, caller: bytes, earlier: Earlier) -> Endpoint:
    """The endpoint for one request."""

    def writer(
        service: Service, body: TranslatedResponsesRequest, prompts: list[Prompt], generation: Generation
    ) -> ResponseWriter:
        async def keep(response: Response) -> None:
            await store.add(row_of(caller, response, body), ended(response).items)

        source = ChatSource(service, body, prompts[0], generation)
        return ResponseWriter(source, body.asked, keep) if body.asked.store else ResponseWriter(source, body.asked)

    return replace(
        RESPONSES,
        writer=writer,
        translate=functools.partial(translate, earlier=earlier),
        answer_id=store.new_id(int(time.time())),
    )


async def _answer_in_background(
    service: Service, exchange: Exchange, store: StoredResponses, endpoint: Endpoint, raw: bytes
) -> None:
    """Accept a background response, or find it by its key; answer with its current state or its stream."""
    caller, request = store.caller_of(exchange.tenant), None
    if (key := idempotency_key(exchange.headers)) is not None:
        digest = request_digest(await service.fingerprint_for(raw) or "", exchange.path, key, raw)
        request = KeyedRequest(exchange.caller, key, digest)
    await store.resumed.wait()
    body, raw, model, warnings = await decode(service, endpoint, raw)
    assert isinstance(body, TranslatedResponsesRequest)
    async with nullcontext() if request is None else store.accepting(caller, request.key):
        row = None if request is None else await _of_key(store, caller, request)
        if row is None:
            job = Job(raw.decode(), model, warnings, service.fingerprint_of(model))
            check_time_limit(service, exchange, body)
            row = await _accept(service, exchange, store, body, job, request)
    if body.stream:
        await send_stream(service, exchange, row, 0)
    else:
        await send_response(service, exchange, row)


async def _of_key(store: StoredResponses, caller: bytes, request: KeyedRequest) -> Row | None:
    row = await store.of_key(caller, request.key)
    if row is not None and row.digest != request.digest:
        raise HttpError(
            422,
            "This Idempotency-Key belongs to another request, whose response is stored. Use a new key per request.",
            "Idempotency-Key",
        )
    return row


async def _accept(
    service: Service,
    exchange: Exchange,
    store: StoredResponses,
    body: TranslatedResponsesRequest,
    job: Job,
    request: KeyedRequest | None,
) -> Row:
    """Store the response before it is acknowledged, and return its row."""
    created, tenant = int(time.time()), exchange.tenant
    answer_id = store.new_id(created) if request is None else request.answer_id(RESPONSES.prefix, created)
    with ExitStack() as admitted:
        admitted.enter_context(service.admission.entered(tenant.name, tenant.weight))
        work = await BackgroundWork.prepared(service, tenant, answer_id, created, job)
        admitted.callback(work.close)
        key, digest = (None, None) if request is None else (request.key, request.digest)
        row = replace(
            row_of(store.caller_of(tenant), work.queued(), body),
            key=key,
            digest=digest,
            job=msgspec.json.encode(job),
            has_events=int(bool(body.stream)),
        )
        await store.add(row, ())
        store.begin(BackgroundRun(store, row, work, admitted.pop_all()))
    return row
