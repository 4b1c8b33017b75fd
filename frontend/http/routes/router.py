"""Finds the handler for a path, or suggests the route that was probably meant."""

import difflib
from collections.abc import Sequence
from typing import Any

import starlette.routing
from starlette.exceptions import HTTPException

from ..exchange.access_log import PROBES
from ..exchange.auth import Tenant
from ..exchange.errors import DO_NOT_RETRY, HttpError
from ..exchange.exchange import Exchange
from ..service import Service
from .operator.routes import ADMIN_ROUTES
from .route_spec import RouteSpec
from .stored.resume import resume_responses
from .table import public_routes
from .unsupported_routes import reason_against

MAX_COMPARED_CHARS = 64
_NEAR = 0.7  # difflib's ratio: a letter or a part of the path may be wrong
_METRICS = "metrics are served on the admin socket; see --admin-port and --public-metrics."


class _Endpoint:
    """The endpoint given to the path matcher. It only records the match; handlers get an Exchange."""

    def __init__(self) -> None:
        self.by_method: dict[str, RouteSpec] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope["paged_serve.route"] = self.by_method.get(scope["method"]) or self.by_method["GET"]  # HEAD is like GET


class Router:
    def __init__(self, service: Service, routes: Sequence[RouteSpec], other_paths: Sequence[str] = ()):
        """`other_paths`: paths answered outside of this router that a hint may suggest."""
        self._service = service
        self._paths = sorted({*other_paths, *(spec.path for spec in routes if "{" not in spec.path)})
        endpoints: dict[str, _Endpoint] = {}
        for spec in routes:
            endpoints.setdefault(spec.path, _Endpoint()).by_method[spec.method] = spec
        matched = [
            starlette.routing.Route(path.replace("}", ":path}"), endpoint, methods=[*endpoint.by_method])
            for path, endpoint in endpoints.items()
        ]
        self._matcher = starlette.routing.Router(matched, redirect_slashes=False)

    async def handle(self, exchange: Exchange) -> None:
        """Raises HttpError 404, 405 or 501 if no route matches, else what the handler raises."""
        exchange.scope["app"] = self  # makes the matcher raise instead of answering itself
        path = exchange.path[:200]
        try:
            await self._matcher(exchange.scope, exchange.receive, exchange.send_event)
        except HTTPException as error:
            if (reason := reason_against(path)) and path not in self._paths:  # a route's {id} may match it
                raise HttpError(501, f"{path} is not served here: {reason}.", headers=DO_NOT_RETRY) from None
            if error.status_code == 405:
                methods = (error.headers or {}).get("Allow", "")
                raise HttpError(
                    405,
                    f"{path} does not accept {exchange.scope['method'][:MAX_COMPARED_CHARS]}; it accepts {methods}.",
                    headers=[(b"allow", methods.encode())],
                ) from None
            raise HttpError(404, f"There is no {path} here; {self._hint(path)}") from None
        if "" in exchange.scope["path_params"].values():  # a slash at the end of another route
            raise HttpError(404, f"There is no {path} here; {self._hint(path)}")
        spec: RouteSpec = exchange.scope["paged_serve.route"]
        self._service.check_task(path, spec.tasks)
        await spec.handler(self._service, exchange)

    def _hint(self, path: str) -> str:
        if path == "/metrics":
            return _METRICS
        near = difflib.get_close_matches(path[:MAX_COMPARED_CHARS], self._paths, 1, _NEAR)
        return f"did you mean {near[0]}?" if near else "/openapi.json lists all routes."

    async def resume_responses(self, tenants: Sequence[Tenant], *, predecessor_failed: bool = False) -> bool:
        """Resume the background responses that an earlier process accepted; returns whether any is found deadly."""
        return await resume_responses(self._service, tenants, predecessor_failed=predecessor_failed)

    def count_refusal(self, status: int) -> None:
        self._service.metrics.rejected(status)


def make_routers(service: Service) -> tuple[Router, Router]:
    """The public routes and the operator's routes."""
    return Router(service, public_routes(service.config.server), PROBES), Router(service, ADMIN_ROUTES)
