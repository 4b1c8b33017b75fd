"""Serves the operator's routes on a unix socket in the run directory, and on a port of 127.0.0.1 if configured."""

import logging
from typing import TYPE_CHECKING

import msgspec

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ServerConfig
from paged_serve.protocol.transport.run_dir import ADMIN_SOCKET

from ...listen import open_http_socket, open_unix
from ..exchange.auth import Guard
from ..exchange.errors import HttpError, http_error
from ..exchange.exchange import Exchange, Receive, Scope, Send
from .uvicorn_server import UvicornServer, uvicorn_config

if TYPE_CHECKING:
    from ..routes.router import Router

log = logging.getLogger(__name__)

HOST = "127.0.0.1"


class AdminServer:
    """The operator's server of one frontend; frontend 0 has the port. Raises ConfigError when the port is taken.

    The directory's mode protects the socket; on the port API keys are needed as usual, and web pages are refused.
    """

    def __init__(self, server: ServerConfig, run_dir: str, index: int, *, is_replacement: bool = False):
        """`is_replacement`: of another frontend; it goes on without the port when that is taken."""
        self.router: Router | None = None  # set once loaded
        self.server = UvicornServer(uvicorn_config(self))
        local = msgspec.structs.replace(
            server, host=HOST, port=server.admin_port or 0, uds="", allowed_origins=(), allowed_hosts=()
        )
        self._guard = Guard(local)
        path = self._path = f"{run_dir}/{ADMIN_SOCKET.format(index)}"
        self._listeners = [open_unix(path)]
        self._index = index
        self._port = 0
        if server.admin_port is not None and index == 0:
            try:
                self._listeners.append(open_http_socket(local, "--admin-port"))
                self._port = self._listeners[-1].getsockname()[1]
            except ConfigError as error:
                if not is_replacement:
                    self._listeners[0].close()
                    raise
                log.error("the operator's routes are only on %s; the next frontend tries again: %s", path, error)

    def facts(self) -> dict[str, str]:
        """For the banner: the address, reported by the first frontend for all."""
        if self._index:
            return {}
        return {"admin": f"http://{HOST}:{self._port}" if self._port else self._path}

    async def serve(self) -> None:
        for listener in self._listeners:
            listener.setblocking(False)
        await self.server.serve(sockets=self._listeners)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send)
        try:
            if scope["client"]:  # over TCP
                self._guard.check(exchange.headers)
            if self.router is None:
                raise HttpError(503, "The server is starting: it is loading the model.")
            await self.router.handle(exchange)
        except Exception as error:  # the outermost handler of a request
            answer = http_error(error, exchange.request_id)
            if answer.status == 500:
                log.error("failed request=%s: %s", exchange.request_id, error, exc_info=True)
            if not exchange.started:
                await exchange.send_error(answer)
