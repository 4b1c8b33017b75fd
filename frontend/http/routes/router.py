"""From a path to its handler."""

from collections.abc import Sequence
from typing import Any

import starlette.routing
from starlette.exceptions import HTTPException

from ...admission import Admission
from ...buffer_budget import BufferBudget
from ..exchange.errors import HttpError
from ..exchange.exchange import Exchange
from ..service import Engine, Service, TextSide
from .admin import ADMIN_ROUTES
from .route_spec import RouteSpec
from .table import public_routes

ELSEWHERE = {"/metrics": "figures are served on the admin socket; see --admin-port and --public-metrics"}


class _Endpoint:
    """What the path matcher finds: it only notes the match, so that handlers see our Exchange and nothing else."""

    def __init__(self) -> None:
        self.by_method: dict[str, RouteSpec] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope["paged_serve.route"] = self.by_method.get(scope["method"]) or self.by_method["GET"]  # HEAD is like GET


class Router:
    def __init__(self, service: Service, routes: Sequence[RouteSpec]):
        self._service = service
        endpoints: dict[str, _Endpoint] = {}
        for spec in routes:
            endpoints.setdefault(spec.path, _Endpoint()).by_method[spec.method] = spec
        matched = [
            starlette.routing.Route(path.replace("}", ":path}"), endpoint, methods=[*endpoint.by_method])
            for path, endpoint in endpoints.items()
        ]
        self._matcher = starlette.routing.Router(matched, redirect_slashes=False)

    async def handle(self, exchange: Exchange) -> None:
        """Raises HttpError 404 or 405 when no route fits, else what the handler raises."""
        exchange.scope["app"] = self  # has the matcher raise instead of answering itself
        path = exchange.path[:200]
        try:
            await self._matcher(exchange.scope, exchange.receive, exchange.send_event)
        except HTTPException as error:
            if error.status_code == 405:
                allowed = [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]
                raise HttpError(405, f"{path} does not take {exchange.scope['method']}.", headers=allowed) from None
            hint = ELSEWHERE.get(path, "/openapi.json lists what there is")
            raise HttpError(404, f"There is no {path} here; {hint}.") from None
        spec: RouteSpec = exchange.scope["paged_serve.route"]
        await spec.handler(self._service, exchange)

    def count_refusal(self, status: int) -> None:
        self._service.metrics.rejected(status)


def make_routers(
    text: TextSide,
    engine: Engine,
    admission: Admission,
    index: int = 0,
    run_dir: str = "",
    buffers: BufferBudget | None = None,
) -> tuple[Router, Router]:
    """The public routes and the operator's, over one model and one engine.

    `index` is this frontend's, whose figures join those of the others in `run_dir`. `buffers`: None is a budget of
    the routes' own.
    """
    service = Service.of(text, engine, admission, index, run_dir, buffers)
    return Router(service, public_routes(text.config.server)), Router(service, ADMIN_ROUTES)
