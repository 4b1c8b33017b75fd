"""Answers that are ready before the body of their request is: an error that the headers alone decide."""

from collections.abc import Callable
from typing import Any

from ..exchange.exchange import Receive, Scope, Send

ASGI = Any


def closing_early(application: ASGI, cycle: Any, is_early: Callable[[], bool]) -> ASGI:
    """Wrap `application` for one exchange, uvicorn's `cycle`: an early answer announces the end of the connection.

    uvicorn would end it at once, and the peer, which still sends, would get a reset instead of the answer.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_and_stay(event: Any) -> None:
            if event["type"] == "http.response.start" and is_early():
                cycle.keep_alive = False
                await send(event)
                cycle.keep_alive = True  # the protocol closes the connection
            else:
                await send(event)

        await application(scope, receive, send_and_stay)

    return answer
