"""Requests with an Idempotency-Key: a repeated request gets the same answer, which survives a broken connection.

The answer depends only on the request and the answer's id: each event has one token, choices take turns, and nothing
depends on other requests. So a client that repeats the request with the id of its last event gets exactly the events
after it, from this frontend's memory or computed again.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing

import msgspec

from ..exchange.errors import HttpError
from ..exchange.exchange import EVENTS, JSON, Exchange
from ..exchange.sse import AnswerHead, numbered
from ..idempotency.keys import EventId, KeyedRequest, last_event_id, request_digest
from ..idempotency.stored_answer import StoredAnswer
from ..openai.endpoints import Endpoint, Work, Writer, check_time_limit
from ..service import Service


async def create_once(service: Service, exchange: Exchange, endpoint: Endpoint, key: str) -> None:
    """Answer a request, or resume its answer. Raises HttpError 422 if the key belongs to another request."""
    after = last_event_id(exchange.headers)
    with service.admission.reading():
        if service.answers.of_key(exchange.caller, key) is None:  # a full server refuses before reading the body
            service.admission.check(exchange.tenant.name, exchange.tenant.weight)
        raw = await exchange.body()
        async with exchange.until_disconnect():
            answer = await _found_or_begun(service, exchange, endpoint, key, raw, after)
            del raw
            exchange.lease.resize(0)  # the stored answer has its own lease
            await _send(service, exchange, answer, after)


async def _found_or_begun(
    service: Service, exchange: Exchange, endpoint: Endpoint, key: str, raw: bytes, after: EventId | None
) -> StoredAnswer:
    fingerprint = await service.fingerprint_for(raw)
    if fingerprint is None and (stored := service.answers.of_key(exchange.caller, key)) is not None:
        fingerprint = stored.request.fingerprint  # of an adapter that has been unloaded since
    digest = request_digest(fingerprint or "", exchange.path, key, raw)
    request = KeyedRequest(exchange.caller, key, digest, fingerprint or "")
    if (answer := service.answers.of_request(request, after)) is not None:
        _check_event_id(endpoint, request, answer.streams, after)
        return answer  # before decoding: what the request refers to may have been deleted since
    body, raw, model, warnings = await endpoint.decode(service, raw)
    _check_event_id(endpoint, request, body.stream, after)
    if (answer := service.answers.of_request(request, after)) is not None:
        return answer
    with ExitStack() as admitted:
        admitted.enter_context(service.admission.entered(exchange.tenant.name, exchange.tenant.weight))
        check_time_limit(service, exchange, body)
        head = _head(endpoint, request, model, warnings, after)
        prompts = await endpoint.prompts(service, body, raw, head.created)
        if (answer := service.answers.of_request(request, after)) is not None:
            return answer  # another connection began it meanwhile
        head.warnings.extend(prompts[0].warnings)
        lease = admitted.enter_context(service.buffers.lease(exchange.tenant.name))
        work = endpoint.begin(service, exchange, body, prompts, lease, in_turn=True)
        work.answer_id = head.answer_id
        streams = bool(body.stream)
        events = _events(work, endpoint.writer(service, body, prompts, work), head, streams=streams)
        first = 0 if after is None else after.number
        answer = service.answers.begin(request, head.answer_id, streams=streams, first=first)
        answer.make(events, admitted.pop_all())
        return answer


async def get_stream(service: Service, exchange: Exchange) -> None:
    """Resume a stream that this frontend stores, after `Last-Event-ID`."""
    await exchange.body()
    answer, after = _stored(service, exchange)
    async with exchange.until_disconnect():
        with service.admission.reading():
            await _send(service, exchange, answer, after)


async def head_stream(service: Service, exchange: Exchange) -> None:
    """The head of `get_stream`'s answer. HEAD is safe: it neither takes over the stream nor prolongs its storage."""
    answer, _ = _stored(service, exchange)
    await exchange.send_head(200, EVENTS if answer.streams else JSON)


def _stored(service: Service, exchange: Exchange) -> tuple[StoredAnswer, EventId | None]:
    """The requested stream, and the event to resume after. Raises HttpError 400, 404 or 410."""
    answer_id, after = exchange.scope["path_params"]["id"], last_event_id(exchange.headers)
    if after is not None and after.answer_id != answer_id:
        raise HttpError(400, f"Last-Event-ID belongs to the stream {after.answer_id}.", "Last-Event-ID")
    return service.answers.of_id(exchange.caller, answer_id, 0 if after is None else after.number), after


async def delete_stream(service: Service, exchange: Exchange) -> None:
    """End the stream, as a broken connection ends a request without a key."""
    answer_id = exchange.scope["path_params"]["id"]
    answer = service.answers.of_id(exchange.caller, answer_id, None)
    service.answers.remove(answer, HttpError(410, f"The stream {answer_id} was deleted."))
    await exchange.send(204, b"", [])


def _check_event_id(endpoint: Endpoint, request: KeyedRequest, streams: bool | None, after: EventId | None) -> None:
    if after is None:
        return
    if not streams:
        raise HttpError(400, "Last-Event-ID applies only to streams; this request is not one.", "Last-Event-ID")
    if after.answer_id != request.answer_id(endpoint.prefix, after.created):
        raise HttpError(
            422,
            "Last-Event-ID belongs to a request with another body or Idempotency-Key, or to a server with another "
            "model or other settings. Send the request again without Last-Event-ID.",
            "Last-Event-ID",
        )


def _head(
    endpoint: Endpoint, request: KeyedRequest, model: str, warnings: list[str], after: EventId | None
) -> AnswerHead:
    if after is not None:
        return AnswerHead(after.answer_id, model, warnings, after.created)
    created = int(time.time())
    return AnswerHead(request.answer_id(endpoint.prefix, created), model, warnings, created)


async def _events(work: Work, writer: Writer, head: AnswerHead, *, streams: bool) -> AsyncGenerator[list[bytes], None]:
    """All events of the answer; an answer that is not streamed is one event, its body."""
    number = 0
    try:
        await work.submit()
        if not streams:
            yield [msgspec.json.encode(await writer.answer(head))]
            return
        async with aclosing(writer.frames(head)) as batches:
            async for batch in batches:
                yield [numbered(event, head.answer_id, number + i) for i, event in enumerate(batch, 1)]
                number += len(batch)
    finally:
        work.close()


async def _send(service: Service, exchange: Exchange, answer: StoredAnswer, after: EventId | None) -> None:
    number = 0 if after is None else after.number
    async with aclosing(answer.events_after(number)) as events:
        if answer.streams:
            await exchange.send_events(events, service.config.server.sse_keep_alive_interval_s)
        else:
            async for event in events:
                await exchange.send(200, event, JSON)
