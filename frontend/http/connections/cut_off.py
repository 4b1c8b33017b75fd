"""Requests that the end of the process cuts off: their connections break, and clients try again."""

import asyncio
from typing import Any

from ..exchange.exchange import Receive, Scope, Send

ASGI = Any


def broken_when_cancelled(application: ASGI, cycle: Any) -> ASGI:
    """Wrap `application` for one exchange, uvicorn's `cycle`: a cancelled one has no answer.

    uvicorn would log it as a failure of the application, and answer 500.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await application(scope, receive, send)
        except asyncio.CancelledError:
            cycle.disconnected = True
            cycle.transport.abort()

    return answer
