"""The operator's routes for requests in progress: lists those of all frontends, and ends some by their ids."""

import logging
from collections.abc import Collection
from typing import Annotated

import msgspec

from ....conversation.strict_json import decode_body
from ...exchange.errors import HttpError
from ...exchange.exchange import Exchange
from ...service import RequestInProgress, Service
from ..route_spec import RouteSpec
from .siblings import answers_of_others

log = logging.getLogger(__name__)

OWN_REQUESTS = "/v1/requests/own"
ABORT_OWN = "/abort_requests/own"
_decode_list = msgspec.json.Decoder(list[RequestInProgress]).decode


class AbortBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The requests to end: each by its own id or by that of its answer."""

    request_ids: Annotated[list[str], msgspec.Meta(max_length=1024)]


async def requests(service: Service, exchange: Exchange) -> None:
    """The requests in progress of all frontends, the oldest first."""
    found = _own(service)
    for text in await answers_of_others(service, "GET", OWN_REQUESTS):
        found += _decode_list(text or b"[]")
    await _send(exchange, found)


async def own_requests(service: Service, exchange: Exchange) -> None:
    await exchange.send_json(_own(service))


async def abort_request(service: Service, exchange: Exchange) -> None:
    """End one request, whichever frontend has it. Raises HttpError 404 if none has."""
    name = exchange.scope["path_params"]["id"]
    found = await _aborted(service, [name])
    if not found:
        raise HttpError(404, f"There is no request {name[:200]!r} in progress: GET /v1/requests lists those that are.")
    await _send(exchange, found)


async def abort_requests(service: Service, exchange: Exchange) -> None:
    """End several requests; those that are not in progress may have ended by themselves."""
    body, _ = decode_body(AbortBody, await exchange.body())
    await _send(exchange, await _aborted(service, body.request_ids))


async def abort_own(service: Service, exchange: Exchange) -> None:
    body, _ = decode_body(AbortBody, await exchange.body())
    await exchange.send_json(_aborted_here(service, body.request_ids))


def _own(service: Service) -> list[RequestInProgress]:
    return [request.progress() for request in service.in_progress]


async def _aborted(service: Service, names: list[str]) -> list[RequestInProgress]:
    found = _aborted_here(service, names)
    for text in await answers_of_others(service, "POST", ABORT_OWN, msgspec.json.encode(AbortBody(names))):
        found += _decode_list(text or b"[]")
    return found


def _aborted_here(service: Service, names: Collection[str]) -> list[RequestInProgress]:
    found = []
    for request in service.in_progress:
        progress = request.progress()
        if progress.id in names or progress.answer_id in names:
            log.info("the operator ended request=%s answer=%s", progress.id, progress.answer_id)
            request.abort()
            found.append(progress)
    return found


async def _send(exchange: Exchange, found: list[RequestInProgress]) -> None:
    found.sort(key=lambda request: -request.age_s)
    await exchange.send_json({"object": "list", "data": found})


REQUEST_ROUTES = (
    RouteSpec("GET", "/v1/requests", requests, "The requests in progress"),
    RouteSpec("GET", OWN_REQUESTS, own_requests, "The requests in progress of this frontend only"),
    RouteSpec("DELETE", "/v1/requests/{id}", abort_request, "End a request in progress"),
    RouteSpec("POST", "/abort_requests", abort_requests, "End requests in progress"),
    RouteSpec("POST", ABORT_OWN, abort_own, "End requests in progress of this frontend only"),
)
