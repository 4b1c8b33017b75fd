"""uvicorn, stopped by the supervisor instead of by signals, with limits on connections."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn

from ...buffer_budget import DEFAULT_MAX_BYTES, BufferBudget
from ..connections.connection_buffers import ConnectionBuffers
from ..connections.connection_limit import ConnectionLimit
from ..connections.http_protocol import LimitedHttpProtocol, PageHeaders, no_page_headers
from .acceptor import Acceptor

DATE_EVERY_S = 1.0  # the Date header's resolution
KEEP_ALIVE_S = 65  # above the usual 60 s of proxies, so that the proxy closes idle connections


def uvicorn_config(
    app: Any,
    connection_limit: ConnectionLimit | None = None,
    buffers: ConnectionBuffers | None = None,
    page_headers: PageHeaders = no_page_headers,
) -> uvicorn.Config:
    connection_limit = connection_limit or ConnectionLimit()
    buffers = buffers or ConnectionBuffers(BufferBudget(DEFAULT_MAX_BYTES))
    return uvicorn.Config(
        app,
        http=partial(  # type: ignore[arg-type]
            LimitedHttpProtocol, connection_limit=connection_limit, buffers=buffers, page_headers=page_headers
        ),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )


class UvicornServer(uvicorn.Server):
    """Serves until its task is cancelled."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        self.servers: list[Any] = [Acceptor(listener, self.new_connection) for listener in sockets or ()]
        self.started = True

    def new_connection(self) -> LimitedHttpProtocol:
        make: Any = self.config.http_protocol_class
        connection: LimitedHttpProtocol = make(self.config, self.server_state, self.lifespan.state)
        return connection

    async def main_loop(self) -> None:
        """Sleep until cancelled; uvicorn's loop would check ten times per second whether to end."""
        while not await self.on_tick(0):
            await asyncio.sleep(DATE_EVERY_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    @property
    def has_unsent_bytes(self) -> bool:
        """Whether a client has yet to read a part of its answer, which would be lost with this process."""
        connections: Any = self.server_state.connections
        return any(connection.has_unsent_bytes for connection in connections)
