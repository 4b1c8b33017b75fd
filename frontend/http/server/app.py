"""The ASGI application. It answers /live at once, and other routes once the model's text side has loaded."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from paged_serve.protocol.errors import PagedServeError
from paged_serve.protocol.messages.config import ServerConfig

from ...admission import Admission
from ...buffer_budget import BufferBudget
from ..anthropic.errors import wire_format
from ..exchange.access_log import PROBES, log_answered
from ..exchange.auth import Guard
from ..exchange.body import Disconnected
from ..exchange.errors import HttpError, http_error
from ..exchange.exchange import Exchange, Receive, Scope, Send
from ..idempotency.other_frontends import PASSED_ON, REPLACED_WITHIN_S, RETRY_SOON, OtherFrontends
from ..page.page_files import is_page_file

if TYPE_CHECKING:
    from ..routes.router import Router

log = logging.getLogger(__name__)

_OPEN_PROBES = ("/live", "/health", "/ping")  # answered with a status without a body, so they need no key


class Application:
    """The application of one frontend.

    `engine_ready`: whether the engine is connected and has recently sent a message; `progresses`: whether requests are
    being computed; `router_wait_s`: how long a request waits for the routes; `secret`: the run's secret.
    """

    def __init__(
        self,
        server: ServerConfig,
        admission: Admission,
        engine_ready: Callable[[], bool],
        progresses: Callable[[], bool] = lambda: True,
        router_wait_s: float = 0.0,
        secret: str = "",
        buffers: BufferBudget | None = None,
    ):
        self._guard = Guard(server, secret)
        self._root_path = server.root_path
        self.page_headers = self._guard.browsers.answer_headers
        self._buffers = buffers or BufferBudget(server.max_buffered_bytes, len(server.api_keys) > 1)
        self._admission = admission
        self._engine_ready = engine_ready
        self._progresses = progresses
        self._router_wait_s = router_wait_s
        self.other_frontends: OtherFrontends | None = None  # None: there is no other frontend
        self._router: Router | None = None
        self._has_router = asyncio.Event()

    @property
    def router(self) -> "Router | None":
        """The router, once the model's text side has loaded."""
        return self._router

    @router.setter
    def router(self, router: "Router") -> None:
        self._router = router
        self._has_router.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["path"] = self._without_root_path(scope["path"])
        exchange = Exchange(scope, receive, send)
        exchange.is_last = self._admission.draining  # a proxy must not send another request on a connection that ends
        exchange.page_headers = self.page_headers(exchange.headers.get("origin", ""))
        exchange.wire_format = wire_format(exchange.path, exchange.headers)
        with self._buffers.lease() as exchange.lease:
            try:
                await self._answer(exchange)
            except Exception as error:  # the outermost handler of a request: its error must not reach others
                await self._answer_error(exchange, error)
                error.__traceback__ = None  # a stored answer holds its error, whose frames would hold both
            finally:
                if PASSED_ON not in scope:  # otherwise the frontend that passed it on logs it
                    log_answered(exchange)

    def _without_root_path(self, path: str) -> str:
        """The path without the root path, which only some proxies strip."""
        rest = path.removeprefix(self._root_path)
        return rest if rest.startswith("/") else path

    async def _answer(self, exchange: Exchange) -> None:
        path, browsers = exchange.path, self._guard.browsers
        if (permission := browsers.preflight(exchange.scope["method"], exchange.headers)) is not None:
            browsers.check(exchange.headers)  # a preflight cannot carry a key
            return await exchange.send(204, b"", permission)
        if is_page_file(exchange.scope["method"], path):  # the page asks for the key
            browsers.check(exchange.headers)
        elif path not in _OPEN_PROBES:
            exchange.tenant = self._guard.check(exchange.headers)
            exchange.lease.tenant = exchange.tenant.name
        if path in PROBES and exchange.scope["method"] not in ("GET", "HEAD"):
            raise HttpError(405, f"{path} accepts only GET.", headers=[(b"allow", b"GET, HEAD")])
        if path and path == self._root_path:  # the page's relative links need the trailing slash
            return await exchange.send(308, b"", [(b"location", f"{path}/".encode())])
        if path == "/live":
            return await exchange.send(200, b"", [])
        if path in ("/health", "/ping"):  # SageMaker uses the second
            return await exchange.send(200 if self._engine_ready() else 503, b"", [])
        if path == "/ready":
            self._check_ready()
            return await exchange.send(200, b"", [])
        if self.other_frontends is not None and (owner := self.other_frontends.owner_of(exchange)) is not None:
            with self._admission.reading():
                return await self.other_frontends.pass_on(exchange, owner)
        router = self.router or await self._router_in_time(REPLACED_WITHIN_S if PASSED_ON in exchange.scope else 0.0)
        return await router.handle(exchange)

    async def _router_in_time(self, router_wait_s: float) -> "Router":
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(router_wait_s, self._router_wait_s)):
                await self._has_router.wait()
        if self.router is None:
            raise HttpError(503, "The server is starting: it is loading the model.", headers=RETRY_SOON)
        return self.router

    def _check_ready(self) -> None:
        if self._admission.draining:
            raise HttpError(503, "The server is shutting down.")
        if self.router is None:
            raise HttpError(503, "The server is starting: it is loading the model.", headers=RETRY_SOON)
        if not self._engine_ready():
            raise HttpError(503, "The engine does not respond at the moment.", headers=RETRY_SOON)
        if not self._progresses():
            raise HttpError(503, "A process of the engine is being replaced.", headers=RETRY_SOON)

    async def _answer_error(self, exchange: Exchange, error: Exception) -> None:
        if isinstance(error, Disconnected):
            return
        answer = http_error(error, exchange.request_id)
        if answer.status == 500:
            unexpected = None if isinstance(error, PagedServeError) else error
            log.error("failed request=%s: %s", exchange.request_id, error, exc_info=unexpected)
        if self.router is not None and answer.status in (400, 429, 503, 504) and exchange.path not in PROBES:
            self.router.count_refusal(answer.status)
        if not exchange.started:  # otherwise the connection breaks
            await exchange.send_error(answer)
