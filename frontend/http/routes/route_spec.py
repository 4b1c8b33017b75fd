"""The definition of a route, for the table, the router and the OpenAPI document."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from paged_serve.protocol.messages.pooling_params import Task

from ..exchange.errors import ErrorAnswer
from ..exchange.exchange import Exchange
from ..service import Service

Kinds = tuple[type[msgspec.Struct], ...]  # one of them
Tasks = tuple[Task, ...]
Handler = Callable[[Service, Exchange], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class RouteSpec:
    method: str
    path: str  # a last part in braces matches the rest of the path
    handler: Handler
    summary: str
    bodies: Kinds = ()
    answers: Kinds = ()  # (): text or nothing
    streams: bool = False
    headers: tuple[str, ...] = ()  # that change what it does
    statuses: tuple[int, ...] = ()  # beside those that any route may answer with
    errors: Kinds = (ErrorAnswer,)
    tasks: Tasks = ()  # one of which the model can be asked for; (): it asks for none
