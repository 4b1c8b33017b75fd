"""The operator's routes: figures, and the engine's state. None of them is public without --public-metrics."""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

import msgspec

from paged_serve.protocol.errors import PagedServeError
from paged_serve.protocol.messages.engine_core import SchedulerStats, Utility
from paged_serve.protocol.transport.run_dir import ADMIN_SOCKET

from ..exchange.exchange import Exchange
from ..service import Service
from .route_spec import RouteSpec

SIBLING_WITHIN_S = 1.0
ENGINE_WITHIN_S = 0.5
OWN_METRICS = "/metrics/own"
_TEXT = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]
_JSON = [(b"content-type", b"application/json")]


async def metrics(service: Service, exchange: Exchange) -> None:
    """The figures of all frontends, whichever of them was asked."""
    others = [other for other in range(service.config.server.num_frontends) if other != service.index]
    stats, metrics_of_others = await asyncio.gather(
        _engine_stats(service), asyncio.gather(*(_own_metrics_of(service.run_dir, other) for other in others))
    )
    await exchange.send(200, merged([service.metrics.exposition(stats), *metrics_of_others]), _TEXT)


async def own_metrics(service: Service, exchange: Exchange) -> None:
    await exchange.send(200, service.metrics.exposition(await _engine_stats(service)), _TEXT)


async def _engine_stats(service: Service) -> SchedulerStats | None:
    """As of now: an idle engine reports its figures twice a second. The last reported ones if it does not answer."""
    if service.engine.ready:
        with contextlib.suppress(PagedServeError, TimeoutError):
            async with asyncio.timeout(ENGINE_WITHIN_S):
                figures = msgspec.json.decode(await service.engine.utility(Utility.STATS), type=dict[str, Any])
            return SchedulerStats(**{name: value for name, value in figures.items() if name != "tenants"})
    return service.engine.stats


async def _own_metrics_of(run_dir: str, index: int) -> bytes:
    """Nothing when that frontend is being replaced."""
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(SIBLING_WITHIN_S):
            reader, writer = await asyncio.open_unix_connection(f"{run_dir}/{ADMIN_SOCKET.format(index)}")
            try:
                writer.write(f"GET {OWN_METRICS} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            finally:
                writer.transport.abort()
        return body if head.startswith(b"HTTP/1.1 200 ") else b""
    return b""


def merged(expositions: Iterable[bytes]) -> bytes:
    """One text of several: each family's samples together, as the format asks; equal series (the engine's) once."""
    families: dict[bytes, dict[bytes, bytes]] = {}
    for text in expositions:
        family: dict[bytes, bytes] = {}
        for line in text.splitlines(keepends=True):
            if line.startswith(b"# HELP "):
                family = families.setdefault(line.split(b" ", 3)[2], {})
            series = line if line.startswith(b"#") else line.rpartition(b" ")[0]
            family.setdefault(series, line)
    return b"".join(line for family in families.values() for line in family.values())


async def stats(service: Service, exchange: Exchange) -> None:
    await exchange.send(200, await service.engine.utility(Utility.STATS), _JSON)


async def state(service: Service, exchange: Exchange) -> None:
    await exchange.send(200, await service.engine.utility(Utility.DUMP_STATE), _JSON)


async def check(service: Service, exchange: Exchange) -> None:
    await exchange.send(200, await service.engine.utility(Utility.CHECK_INVARIANTS), _JSON)


async def reset_prefix_cache(service: Service, exchange: Exchange) -> None:
    await exchange.send(200, await service.engine.utility(Utility.RESET_PREFIX_CACHE), _JSON)


METRICS = RouteSpec("GET", "/metrics", metrics, "Figures for Prometheus")
ADMIN_ROUTES = (
    METRICS,
    RouteSpec("GET", OWN_METRICS, own_metrics, "The figures of this frontend alone"),
    RouteSpec("GET", "/stats", stats, "The engine's figures now"),
    RouteSpec("GET", "/state", state, "What the engine holds: sequences, blocks, steps in flight"),
    RouteSpec("POST", "/check", check, "Audit the engine's blocks and rows; 500 when something does not add up"),
    RouteSpec("POST", "/reset_prefix_cache", reset_prefix_cache, "Drop all shared prefixes"),
)
