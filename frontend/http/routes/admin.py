"""The operator's routes: metrics and the engine's state. None of them is public without --public-metrics."""

import asyncio
import contextlib
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec

from paged_serve import __version__
from paged_serve.protocol.errors import PagedServeError
from paged_serve.protocol.messages.engine_core import Utility
from paged_serve.protocol.messages.stats import AdapterStats, KVTierStats, SchedulerStats
from paged_serve.protocol.transport.run_dir import ADMIN_SOCKET

from ..exchange.exchange import JSON, Exchange
from ..service import RequestInProgress, Service
from .route_spec import RouteSpec

SIBLING_WITHIN_S = 1.0
ENGINE_WITHIN_S = 0.5
OWN_METRICS = "/metrics/own"
OWN_REQUESTS = "/v1/requests/own"
_TEXT = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]


async def metrics(service: Service, exchange: Exchange) -> None:
    """The metrics of all frontends, whichever of them receives the request."""
    stats, metrics_of_others = await asyncio.gather(_engine_stats(service), _get_from_others(service, OWN_METRICS))
    await exchange.send(200, merged([service.metrics.exposition(stats), *metrics_of_others]), _TEXT)


async def own_metrics(service: Service, exchange: Exchange) -> None:
    await exchange.send(200, service.metrics.exposition(await _engine_stats(service)), _TEXT)


async def _engine_stats(service: Service) -> SchedulerStats | None:
    """The engine's current figures; None when it does not answer. Those that it has last reported may be older than the
    ones of the last scrape: a counter would go back."""
    if service.engine.ready:
        with contextlib.suppress(PagedServeError, TimeoutError):
            async with asyncio.timeout(ENGINE_WITHIN_S):
                figures = msgspec.json.decode(await service.engine.utility(Utility.STATS), type=dict[str, Any])
            adapters = msgspec.convert(figures.pop("adapters"), tuple[AdapterStats, ...])
            tier = msgspec.convert(figures.pop("kv_tier"), KVTierStats | None)
            own = {name: value for name, value in figures.items() if name != "tenants"}
            return SchedulerStats(**own, adapters=adapters, kv_tier=tier)
    return None


async def requests(service: Service, exchange: Exchange) -> None:
    """The requests in progress of all frontends, the oldest first."""
    found = _own_requests(service)
    for text in await _get_from_others(service, OWN_REQUESTS):
        found += msgspec.json.decode(text or b"[]", type=list[RequestInProgress])
    found.sort(key=lambda request: -request.age_s)
    await exchange.send_json({"object": "list", "data": found})


async def own_requests(service: Service, exchange: Exchange) -> None:
    await exchange.send_json(_own_requests(service))


def _own_requests(service: Service) -> list[RequestInProgress]:
    return [request.progress() for request in service.in_progress]


async def server_info(service: Service, exchange: Exchange) -> None:
    """The configuration, with the number of API keys in place of the keys."""
    config = msgspec.to_builtins(service.config)
    config["server"]["api_keys"] = len(config["server"]["api_keys"])
    await exchange.send_json({"version": __version__, "config": config})


async def nothing_to_reset(service: Service, exchange: Exchange) -> None:
    """Programs that drop all caches between two runs call these routes; the server has no such caches."""
    await exchange.send_json({})


async def _get_from_others(service: Service, path: str) -> list[bytes]:
    """The answers of the other frontends at `path`."""
    others = [other for other in range(service.config.server.num_frontends) if other != service.index]
    return await asyncio.gather(*(_get_from(service.run_dir, other, path) for other in others))


async def _get_from(run_dir: str, index: int, path: str) -> bytes:
    """The answer of one frontend; empty while it is being replaced, also if it ended within its answer."""
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(SIBLING_WITHIN_S):
            reader, writer = await asyncio.open_unix_connection(f"{run_dir}/{ADMIN_SOCKET.format(index)}")
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            finally:
                writer.transport.abort()
        is_whole = f"\r\ncontent-length: {len(body)}\r\n" in f"{head.decode('latin-1').lower()}\r\n"
        return body if head.startswith(b"HTTP/1.1 200 ") and is_whole else b""
    return b""


def merged(expositions: Iterable[bytes]) -> bytes:
    """Merge expositions: the samples of a family together, as the format requires, and equal series (those of the
    engine) once."""
    families: dict[bytes, dict[bytes, bytes]] = {}
    for text in expositions:
        family: dict[bytes, bytes] = {}
        for line in text.splitlines(keepends=True):
            if line.startswith(b"# HELP "):
                family = families.setdefault(line.split(b" ", 3)[2], {})
            series = line if line.startswith(b"#") else line.rpartition(b" ")[0]
            family.setdefault(series, line)
    return b"".join(line for family in families.values() for line in family.values())


async def _ask_engine(service: Service, exchange: Exchange, utility: Utility) -> None:
    await exchange.send(200, await service.engine.utility(utility), JSON)


def _of_engine(method: str, path: str, utility: Utility, summary: str) -> RouteSpec:
    return RouteSpec(method, path, partial(_ask_engine, utility=utility), summary)


METRICS = RouteSpec("GET", "/metrics", metrics, "Metrics for Prometheus")
ADMIN_ROUTES = (
    METRICS,
    RouteSpec("GET", OWN_METRICS, own_metrics, "The metrics of this frontend only"),
    _of_engine("GET", "/stats", Utility.STATS, "The engine's current statistics"),
    RouteSpec("GET", "/v1/requests", requests, "The requests in progress"),
    RouteSpec("GET", OWN_REQUESTS, own_requests, "The requests in progress of this frontend only"),
    RouteSpec("GET", "/server_info", server_info, "Version and configuration, without keys"),
    _of_engine("GET", "/state", Utility.DUMP_STATE, "The engine's state: sequences, blocks, steps in flight"),
    _of_engine(
        "POST",
        "/check",
        Utility.CHECK_INVARIANTS,
        "Check the engine's invariants on blocks and rows; 500 if one is violated",
    ),
    _of_engine("POST", "/reset_prefix_cache", Utility.RESET_PREFIX_CACHE, "Empty the prefix cache"),
    RouteSpec("POST", "/reset_mm_cache", nothing_to_reset, "No effect: there is no image cache"),
    RouteSpec("POST", "/reset_encoder_cache", nothing_to_reset, "No effect: there is no image cache"),
)
