"""The two routes that generate: read, check, submit, answer; abort when nobody waits any more."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from .answer_head import AnswerHead
from .call import Call
from .errors import HttpError
from .idempotency import idempotency_key
from .kinds import CHAT_COMPLETION, COMPLETION, Kind, Writer, check_patience, decode, generation_of
from .once import create_once
from .service import Service


async def create_completion(service: Service, call: Call) -> None:
    """Continue one prompt or several."""
    await _create(service, call, COMPLETION)


async def create_chat_completion(service: Service, call: Call) -> None:
    """Answer a conversation."""
    await _create(service, call, CHAT_COMPLETION)


async def _create(service: Service, call: Call, kind: Kind) -> None:
    if (key := idempotency_key(call.headers)) is not None:
        await create_once(service, call, kind, key)
        return
    if "last-event-id" in call.headers:
        raise HttpError(400, "Last-Event-ID needs the Idempotency-Key that the request had.", "Idempotency-Key")
    with service.admission.entered(call.tenant.name, call.tenant.weight):
        raw = await call.body()
        body, model, warnings = await decode(service, kind, raw)
        check_patience(service, call, body)
        created = int(time.time())
        prompts = await kind.prompts(service, body, raw, created)
        async with call.until_disconnect():
            generation = generation_of(service, call, body, prompts)
            try:
                await generation.submit()
                writer = kind.writer(service, body, prompts, generation)
                head = AnswerHead(f"{kind.prefix}-{body.request_id or call.request_id}", model, warnings, created)
                await _answer(service, call, writer, head, streams=bool(body.stream))
            finally:
                generation.close()


async def _answer(service: Service, call: Call, writer: Writer, head: AnswerHead, *, streams: bool) -> None:
    if not streams:
        await call.send_json(await writer.answer(head))
        return
    async with aclosing(_joined(writer.frames(head))) as frames:
        await call.send_events(frames, service.config.server.sse_keep_alive_interval_s)


async def _joined(batches: AsyncGenerator[list[bytes], None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(batches):
        async for batch in batches:
            yield b"".join(batch)
