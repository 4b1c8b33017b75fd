"""Asks the other frontends, over their operator's sockets, for what each of them alone knows."""

import asyncio
import contextlib

from paged_serve.protocol.transport.run_dir import ADMIN_SOCKET

from ...service import Service

SIBLING_WITHIN_S = 1.0


async def answers_of_others(service: Service, method: str, path: str, body: bytes = b"") -> list[bytes]:
    """The answers of the other frontends at `path`."""
    others = [other for other in range(service.config.server.num_frontends) if other != service.index]
    return await asyncio.gather(*(answer_of(service.run_dir, other, method, path, body) for other in others))


async def answer_of(run_dir: str, index: int, method: str, path: str, body: bytes = b"") -> bytes:
    """The answer of one frontend; empty while it is being replaced, also if it ended within its answer."""
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(SIBLING_WITHIN_S):
            reader, writer = await asyncio.open_unix_connection(f"{run_dir}/{ADMIN_SOCKET.format(index)}")
            try:
                lines = f"{method} {path} HTTP/1.1", "host: localhost", "connection: close"
                writer.write("\r\n".join((*lines, f"content-length: {len(body)}", "", "")).encode() + body)
                head, _, found = (await reader.read()).partition(b"\r\n\r\n")
            finally:
                writer.transport.abort()
        is_whole = f"\r\ncontent-length: {len(found)}\r\n" in f"{head.decode('latin-1').lower()}\r\n"
        return found if head.startswith(b"HTTP/1.1 200 ") and is_whole else b""
    return b""
