"""Answers to HTTP/1.0, which has no chunks: the close of the connection ends a body without a length."""

from typing import Any

from ..exchange.exchange import Receive, Scope, Send

ASGI = Any


def close_delimited(application: ASGI, cycle: Any) -> ASGI:
    """Wrap `application` for one exchange, uvicorn's `cycle`, which then writes bodies without chunks."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        is_unframed = False

        async def send_as_is(event: Any) -> None:
            nonlocal is_unframed
            if event["type"] == "http.response.start":
                is_unframed = all(name.lower() != b"content-length" for name, _ in event["headers"])
                if is_unframed:
                    cycle.chunked_encoding = False
            elif is_unframed:
                cycle.expected_content_length = len(event["body"])  # so that each part has the announced length
            await send(event)

        await application(scope, receive, send_as_is)

    return answer
