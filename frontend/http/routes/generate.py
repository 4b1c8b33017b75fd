"""The two routes that generate: read, check, submit, answer; abort when no client waits any more."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from ..exchange.errors import HttpError
from ..exchange.request import JSON, Call
from ..exchange.sse import AnswerHead
from ..idempotency.keys import idempotency_key
from ..openai.endpoints import CHAT_COMPLETION, COMPLETION, Endpoint, check_patience, decode, generation_of
from ..service import Service
from .idempotent import create_once


async def create_completion(service: Service, call: Call) -> None:
    """Continue one prompt or several."""
    await _create(service, call, COMPLETION)


async def create_chat_completion(service: Service, call: Call) -> None:
    """Answer a conversation."""
    await _create(service, call, CHAT_COMPLETION)


async def _create(service: Service, call: Call, endpoint: Endpoint) -> None:
    if (key := idempotency_key(call.headers)) is not None:
        await create_once(service, call, endpoint, key)
        return
    if "last-event-id" in call.headers:
        raise HttpError(400, "Last-Event-ID needs the Idempotency-Key that the request had.", "Idempotency-Key")
    tenant, admission = call.tenant, service.admission
    admission.check(tenant.name, tenant.weight)  # a full server refuses it unread
    raw = await call.body()
    async with call.until_disconnect():
        with admission.entered(tenant.name, tenant.weight):
            answer = await _answer(service, call, endpoint, raw)
        if answer:  # a slow reader holds memory, but no place
            with admission.reading():
                await call.send(200, answer, JSON)


async def _answer(service: Service, call: Call, endpoint: Endpoint, raw: bytes) -> bytes:
    """The whole answer; of a stream, which has been sent then, nothing."""
    created = int(time.time())
    body, model, warnings = await decode(service, endpoint, raw)
    check_patience(service, call, body)
    prompts = await endpoint.prompts(service, body, raw, created)
    del raw
    generation = generation_of(service, call, body, prompts, call.lease)
    try:
        await generation.submit()
        writer = endpoint.writer(service, body, prompts, generation)
        head = AnswerHead(f"{endpoint.prefix}-{body.request_id or call.request_id}", model, warnings, created)
        streams = bool(body.stream)
        del body
        if not streams:
            return msgspec.json.encode(await writer.answer(head))
        async with aclosing(_joined(writer.frames(head))) as frames:
            await call.send_events(frames, service.config.server.sse_keep_alive_interval_s)
        return b""
    finally:
        generation.close()


async def _joined(batches: AsyncGenerator[list[bytes], None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(batches):
        async for batch in batches:
            yield b"".join(batch)
