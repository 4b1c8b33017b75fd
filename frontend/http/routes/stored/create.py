"""POST /v1/responses with stored responses: continues stored conversations and stores the answer."""

import asyncio
import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from paged_serve.protocol.errors import Overloaded

from ....buffer_budget import Lease
from ...exchange.auth import Tenant
from ...exchange.errors import HttpError
from ...exchange.exchange import Exchange
from ...idempotency.keys import KeyedRequest, idempotency_key, request_digest
from ...openai.endpoints import Endpoint, check_time_limit
from ...openai.generation import Generation, Prompt
from ...responses.answers import Response
from ...responses.writer import ResponseWriter
from ...service import Service
from ...stored_responses.background_run import BackgroundRun
from ...stored_responses.database import Row
from ...stored_responses.store import StoredResponses
from ..generate import create_answer
from ..responses import RESPONSES, ChatSource, TranslatedResponsesRequest, translate
from .background_work import BackgroundWork, Job, ended, row_of
from .earlier_responses import References, earlier_of, references_of
from .retrieve import send_response, send_stream


async def create_response(service: Service, exchange: Exchange) -> None:
    """Answer a conversation, with OpenAI's Responses API."""
    store = service.stored
    if store is None:
        await create_answer(service, exchange, RESPONSES)
        return
    await _check_admission(service, exchange, store)
    raw = await exchange.peek()
    asked = await service.off_loop(len(raw), references_of, raw)
    endpoint = _endpoint(store, exchange.tenant, asked, exchange.lease)
    if not asked.background:
        await create_answer(service, exchange, endpoint)
        return
    raw = await exchange.body()
    with service.admission.reading():
        async with exchange.until_disconnect():
            await _answer_in_background(service, exchange, store, endpoint, raw)


async def _check_admission(service: Service, exchange: Exchange, store: StoredResponses) -> None:
    """Refuse a request before its body is read, unless it may be a repetition. Raises Overloaded."""
    key = idempotency_key(exchange.headers)
    if key is not None and service.answers.of_key(exchange.caller, key) is not None:
        return
    try:
        service.admission.check(exchange.tenant.name, exchange.tenant.weight)
    except Overloaded:
        if key is None or await store.of_key(store.caller_of(exchange.tenant), key) is None:
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredEndpoint(Endpoint):
    """The endpoint for one request of `tenant`; `asked`: what it refers to, which is read when the body is decoded."""

    store: StoredResponses
    tenant: Tenant
    asked: References
    lease: Lease  # for the memory of what it refers to

    async def decode(self, service: Service, raw: bytes) -> tuple[Any, bytes, str, list[str]]:
        earlier = await earlier_of(self.store, self.tenant, self.asked, self.lease)
        with_earlier = replace(self, translate=partial(translate, earlier=earlier))
        return await Endpoint.decode(with_earlier, service, raw)


def _endpoint(store: StoredResponses, tenant: Tenant, asked: References, lease: Lease) -> _StoredEndpoint:
    def writer(
        service: Service, body: TranslatedResponsesRequest, prompts: list[Prompt], generation: Generation
    ) -> ResponseWriter:
        async def keep(response: Response) -> None:
            await store.add(row_of(store.caller_of(tenant), response, body), ended(response).items)

        source = ChatSource(service, body, prompts[0], generation)
        return ResponseWriter(source, body.asked, keep) if body.asked.store else ResponseWriter(source, body.asked)

    return _StoredEndpoint(
        RESPONSES.prefix,
        RESPONSES.body,
        RESPONSES.prompts,
        writer,
        store.new_id(int(time.time())),
        store=store,
        tenant=tenant,
        asked=asked,
        lease=lease,
    )


async def _answer_in_background(
    service: Service, exchange: Exchange, store: StoredResponses, endpoint: Endpoint, raw: bytes
) -> None:
    """Accept a background response, or find it by its key; answer with its current state or its stream."""
    key, caller = idempotency_key(exchange.headers), store.caller_of(exchange.tenant)
    await store.until_resumed()
    async with nullcontext() if key is None else store.accepting(caller, key):
        row = None if key is None else await store.of_key(caller, key)
        request = None if key is None else await _keyed(service, exchange, key, raw, row)
        if row is None:
            body, raw, model, warnings = await endpoint.decode(service, raw)
            adapter = service.adapter_of(body.model)
            job = Job(raw.decode(), model, warnings, service.fingerprint_with(adapter), adapter)
            check_time_limit(service, exchange, body)
            row = await _accept(service, exchange, store, body, job, request)
    if row.has_events:
        await send_stream(service, exchange, row, 0)
    else:
        await send_response(service, exchange, row)


async def _keyed(service: Service, exchange: Exchange, key: str, raw: bytes, row: Row | None) -> KeyedRequest:
    """The request with its key. Raises HttpError 422 if `row`, the stored response of the key, is of another one."""
    fingerprint = await service.fingerprint_for(raw)
    if fingerprint is None and row is not None:
        fingerprint = row.fingerprint  # of an adapter that has been unloaded since
    digest = request_digest(fingerprint or "", exchange.path, key, raw)
    if row is not None and row.digest != digest:
        raise HttpError(
            422,
            "This Idempotency-Key belongs to another request, whose response is stored. Use a new key per request.",
            "Idempotency-Key",
        )
    return KeyedRequest(exchange.caller, key, digest, fingerprint or "")


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
        row = replace(
            row_of(store.caller_of(tenant), work.queued(), body),
            job=msgspec.json.encode(job),
            has_events=int(bool(body.stream)),
        )
        if request is not None:
            row = replace(row, key=request.key, digest=request.digest, fingerprint=request.fingerprint)
        adding = asyncio.create_task(store.add(row, ()))
        try:
            await asyncio.shield(adding)
        finally:  # also if the client disconnects meanwhile: a repeated request finds the response by its key
            await adding
            store.begin(BackgroundRun(store, row, work, admitted.pop_all()))
    return row
