"""The generating and pooling routes: read, check, submit, answer; abort when the client disconnects."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from ..exchange.errors import HttpError
from ..exchange.exchange import JSON, Exchange
from ..exchange.sse import AnswerHead
from ..idempotency.keys import idempotency_key
from ..openai.endpoints import Endpoint, check_time_limit
from ..service import Service
from .idempotent import create_once


async def create_answer(service: Service, exchange: Exchange, endpoint: Endpoint) -> None:
    """Answer a request. Without an idempotency key, the request is aborted when its connection breaks."""
    if (key := idempotency_key(exchange.headers)) is not None:
        await create_once(service, exchange, endpoint, key)
        return
    if "last-event-id" in exchange.headers:
        raise HttpError(400, "Last-Event-ID needs the Idempotency-Key of the original request.", "Idempotency-Key")
    tenant, admission = exchange.tenant, service.admission
    admission.check(tenant.name, tenant.weight)  # a full server refuses the request before reading its body
    raw = await exchange.body()
    async with exchange.until_disconnect():
        with admission.entered(tenant.name, tenant.weight):
            answer = await _answer(service, exchange, endpoint, raw)
        if answer:  # sent outside of admission: a slow reader does not count as a request in progress
            with admission.reading():
                await exchange.send(200, answer, JSON)


async def _answer(service: Service, exchange: Exchange, endpoint: Endpoint, raw: bytes) -> bytes:
    """The body of the answer; empty if the answer was streamed, because it is sent by then."""
    created = int(time.time())
    body, raw, model, warnings = await endpoint.decode(service, raw)
    check_time_limit(service, exchange, body)
    prompts = await endpoint.prompts(service, body, raw, created)
    del raw
    work = endpoint.begin(service, exchange, body, prompts, exchange.lease)
    work.answer_id = endpoint.answer_id or f"{endpoint.prefix}{body.request_id or exchange.request_id}"
    try:
        await work.submit()
        writer = endpoint.writer(service, body, prompts, work)
        head = AnswerHead(work.answer_id, model, [*warnings, *prompts[0].warnings], created)
        streams = bool(body.stream)
        del body
        if not streams:
            return msgspec.json.encode(await writer.answer(head))
        async with aclosing(_joined(writer.frames(head))) as frames:
            await exchange.send_events(frames, service.config.server.sse_keep_alive_interval_s)
        return b""
    finally:
        work.close()


async def _joined(batches: AsyncGenerator[list[bytes], None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(batches):
        async for batch in batches:
            yield b"".join(batch)
