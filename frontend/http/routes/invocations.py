"""POST /invocations, for SageMaker: each body is answered by the route that it is written for."""

from collections.abc import Collection
from functools import partial

from paged_serve.protocol.messages.pooling_params import Task

from ...conversation.strict_json import field_names
from ..exchange.exchange import Exchange
from ..idempotency.keys import idempotency_key
from ..openai.endpoints import CHAT_COMPLETION, COMPLETION
from ..service import Service
from .generate import create_answer
from .pooling.routes import POOLING_ROUTES
from .route_spec import Handler, Tasks

_HANDLERS: dict[str, tuple[Handler, Tasks]] = {
    "/v1/completions": (partial(create_answer, endpoint=COMPLETION), ("generate",)),
    "/v1/chat/completions": (partial(create_answer, endpoint=CHAT_COMPLETION), ("generate",)),
    **{spec.path: (spec.handler, spec.tasks) for spec in POOLING_ROUTES},
}
_PAIRS = {"text_1", "text_2", "queries", "items", "data_1", "data_2"}
_OF_POOLING = {"task", "io_processor", "data"}


async def invoke(service: Service, exchange: Exchange) -> None:
    """Answer a body of any of the routes above."""
    key = idempotency_key(exchange.headers)
    if key is None or service.answers.of_key(exchange.caller, key) is None:
        service.admission.check(exchange.tenant.name, exchange.tenant.weight)
    raw = await exchange.peek()
    names = await service.off_loop(len(raw), field_names, raw)
    path = _path_for(names, service.engine.limits.tasks)
    handler, tasks = _HANDLERS[path]
    service.check_task(path, tasks)
    await handler(service, exchange)


def _path_for(names: Collection[str], able: Collection[Task]) -> str:
    """The route for a body with these fields, on a model that is able to serve these tasks."""
    if not _OF_POOLING.isdisjoint(names):
        return "/pooling"
    if "query" in names:
        return "/rerank"
    if not _PAIRS.isdisjoint(names):
        return "/score"
    if "texts" in names:
        return "/v2/embed"
    if "messages" in names and "generate" in able:
        return "/v1/chat/completions"
    if "messages" not in names and "input" not in names:
        return "/v1/completions"
    if "embed" in able or "generate" in able:
        return "/v1/embeddings"
    return "/classify" if "classify" in able else "/pooling"
