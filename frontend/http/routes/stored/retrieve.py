"""The routes of stored responses: read, stream, cancel and delete a response, and list its input items."""

import hashlib
import re
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import parse_qs

import msgspec

from ...exchange.errors import HttpError
from ...exchange.exchange import Exchange
from ...responses.answers import DeletedResponse, InputItemList
from ...service import Service
from ...stored_responses.database import Row
from ...stored_responses.store import StoredResponses

MAX_LISTED, DEFAULT_LISTED = 100, 20
MAX_PARAMETERS = 100  # of a query
_DIGITS = re.compile("[0-9]{1,12}")  # more than any of its numbers, and fewer than Python refuses to read
_PREFIXES = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "custom_tool_call": "ctc_",
    "custom_tool_call_output": "ctco_",
}


async def get_response(service: Service, exchange: Exchange) -> None:
    """The current state of a response; with `stream`, its events after `starting_after`."""
    await exchange.body()
    row, query = await _row(service, exchange), _query(exchange)
    if query.get("stream", "false") != "true":
        await send_response(service, exchange, row)
        return
    if not row.has_events:
        raise HttpError(
            400,
            "stream is true: only responses requested with background: true and stream: true have a stored stream.",
            "stream",
        )
    after = _number(query, "starting_after", -1, 0, 1 << 31)
    with service.admission.reading():
        async with exchange.until_disconnect():
            await send_stream(service, exchange, row, after + 1)


async def delete_response(service: Service, exchange: Exchange) -> None:
    await exchange.body()
    row, store = await _row(service, exchange), _store(service)
    if (run := store.run_of(row)) is not None:
        await run.cancel()
    await store.delete(row.caller, row.id)
    await exchange.send_json(DeletedResponse(id=row.id, object="response", deleted=True))


async def cancel_response(service: Service, exchange: Exchange) -> None:
    """Has no effect on a response that has ended."""
    await exchange.body()
    row, store = await _row(service, exchange), _store(service)
    if not msgspec.json.decode(row.response)["background"]:
        raise HttpError(400, f"{row.id} is not a background response: it ends with its connection.")
    if (run := store.run_of(row)) is not None:
        await run.cancel()
        row = await store.find(row.caller, row.id)
    await send_response(service, exchange, row)


async def list_input_items(service: Service, exchange: Exchange) -> None:
    """The items of the response's own input, the last first by default."""
    await exchange.body()
    row, query = await _row(service, exchange), _query(exchange)
    items = [_listed(row.id, i, item) for i, item in enumerate(msgspec.json.decode(row.input))]
    if (order := query.get("order", "desc")) not in ("asc", "desc"):
        raise HttpError(400, f"order is {order[:100]!r}; it must be asc or desc.", "order")
    if order == "desc":
        items.reverse()
    start = 0
    if (after := query.get("after")) is not None:
        places = [i for i, item in enumerate(items) if item["id"] == after]
        if not places:
            raise HttpError(400, f"after is {after[:100]!r}: {row.id} has no such input item.", "after")
        start = places[0] + 1
    end = start + _number(query, "limit", DEFAULT_LISTED, 1, MAX_LISTED)
    shown = items[start:end]
    await exchange.send_json(
        InputItemList(
            object="list",
            data=shown,
            first_id=shown[0]["id"] if shown else None,
            last_id=shown[-1]["id"] if shown else None,
            has_more=end < len(items),
        )
    )


async def send_response(service: Service, exchange: Exchange, row: Row) -> None:
    response = msgspec.json.decode(row.response)
    if (run := _store(service).run_of(row)) is not None:
        response["status"] = run.status
    await exchange.send_json(response)


async def send_stream(service: Service, exchange: Exchange, row: Row, number: int) -> None:
    """Send its events after the first `number`."""
    store = _store(service)
    run = store.run_of(row)
    source = store.events_after(row, number) if run is None else run.events_after(number)
    async with aclosing(source) as events:
        await exchange.send_events(events, service.config.server.sse_keep_alive_interval_s)


def _store(service: Service) -> StoredResponses:
    if service.stored is None:
        raise HttpError(404, "Responses are not stored here; the server must be started with --store-responses FOLDER.")
    return service.stored


async def _row(service: Service, exchange: Exchange) -> Row:
    """The row of the response whose id is in the path."""
    store = _store(service)
    await store.until_resumed()
    return await store.find(store.caller_of(exchange.tenant), exchange.scope["path_params"]["id"])


def _query(exchange: Exchange) -> Mapping[str, str]:
    """The query parameters; of repeated ones, the last. Raises HttpError 400 for too many."""
    text = exchange.scope.get("query_string", b"").decode("latin-1")
    if text.count("&") >= MAX_PARAMETERS:
        raise HttpError(400, f"The query has more than {MAX_PARAMETERS} parameters.")
    return {name: values[-1] for name, values in parse_qs(text).items()}


def _number(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    """Raises HttpError 400."""
    given = query.get(name)
    if given is None:
        return default
    if not _DIGITS.fullmatch(given) or not least <= int(given) <= most:
        raise HttpError(400, f"{name} is {given[:60]!r}; it must be a number from {least} to {most}.", name)
    return int(given)


def _listed(answer_id: str, place: int, item: dict[str, Any]) -> dict[str, Any]:
    """An item in the form that the official client reads: with an id, a status, and its text in parts."""
    shown = {name: value for name, value in item.items() if value is not None}
    digest = hashlib.sha256(f"{answer_id} input {place}".encode()).hexdigest()[:32]
    shown = {"id": _PREFIXES[item["type"]] + digest, **shown}
    if item["type"] != "reasoning":
        shown.setdefault("status", "completed")
    if item["type"] == "message" and isinstance(item["content"], str):
        shown["content"] = [{"type": "input_text", "text": item["content"]}]
        if item["role"] == "assistant":
            shown["content"] = [{"type": "output_text", "text": item["content"], "annotations": []}]
    return shown
