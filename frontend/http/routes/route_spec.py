"""The definition of a route, for the table, the router and the OpenAPI document."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from paged_serve.protocol.messages.pooling_params import Task

from ..exchange.errors import ErrorAnswer
from ..exchange.exchange import Exchange
from ..service import Service

Kinds = tuple[type[msgspec.Struct], ...]  # alternatives
Tasks = tuple[Task, ...]
Handler = Callable[[Service, Exchange], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class RouteSpec:
    method: str
    path: str  # a last part in braces matches the rest of the path
    handler: Handler
    summary: str
    bodies: Kinds = ()
    answers: Kinds = ()  # (): text or an empty body
    streams: bool = False
    headers: tuple[str, ...] = ()  # request headers that it reads
    statuses: tuple[int, ...] = ()  # in addition to those of every route
    errors: Kinds = (ErrorAnswer,)
    tasks: Tasks = ()  # the model must serve one of these; (): the route needs no task
    operation: str = ""  # its name in the OpenAPI document; "": the handler's
