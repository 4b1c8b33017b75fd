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

from ...exchange.exchange import JSON, Exchange
from ...service import Service
from ..route_spec import RouteSpec
from .requests import REQUEST_ROUTES
from .siblings import answers_of_others

ENGINE_WITHIN_S = 0.5
OWN_METRICS = "/metrics/own"
_TEXT = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]


async def metrics(service: Service, exchange: Exchange) -> None:
    """The metrics of all frontends, whichever of them receives the request."""
    stats, others = await asyncio.gather(_engine_stats(service), answers_of_others(service, "GET", OWN_METRICS))
    await exchange.send(200, merged([service.metrics.exposition(stats), *others]), _TEXT)


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


async def server_info(service: Service, exchange: Exchange) -> None:
    """The configuration, with the number of API keys in place of the keys."""
    config = msgspec.to_builtins(service.config)
    config["server"]["api_keys"] = len(config["server"]["api_keys"])
    await exchange.send_json({"version": __version__, "config": config})


async def nothing_to_reset(service: Service, exchange: Exchange) -> None:
    """Programs that drop all caches between two runs call these routes; the server has no such caches."""
    await exchange.send_json({})


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
    *REQUEST_ROUTES,
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
