"""Servers that answer like various OpenAI servers, correctly or not, in the event loop of the test."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

Answer = Callable[[dict, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(data: object) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def text(words: str, finish_reason: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": words, "finish_reason": finish_reason}]})


def usage(prompt: int, completion: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def streamed(*events: bytes, pause_s: float = 0.0, head: bytes = HEAD) -> Answer:
    """The events, one per chunk, with `pause_s` before each."""

    async def answer(body: dict, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        for one in events:
            await asyncio.sleep(pause_s)
            writer.write(chunked(one))
        writer.write(b"0\r\n\r\n")

    return answer


def whole(status: int, body: object) -> Answer:
    data = json.dumps(body).encode()

    async def answer(_: dict, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(data)) + data)

    return answer


def raw(data: bytes) -> Answer:
    """Send the bytes and close the connection."""

    async def answer(_: dict, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        writer.close()

    return answer


async def silence(_: dict, __: asyncio.StreamWriter) -> None:
    """Never answer."""


@asynccontextmanager
async def server_of(answer: Answer):
    """Yields the URL, and the (path, headers, body) of each request."""
    asked: list[tuple[str, dict[str, str], dict]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
                body = json.loads(await reader.readexactly(int(headers["content-length"])))
                asked.append((head[0].split()[1], headers, body))
                await answer(body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()
