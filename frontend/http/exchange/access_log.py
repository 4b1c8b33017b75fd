"""Logs one line per answered request. The logger's name keeps these lines out of flight records."""

import logging
import time
from typing import Any

from .exchange import Exchange

log = logging.getLogger("http.access")
CLIENT_LEFT = 499  # the client left before an answer: nginx's number
MAX_PATH_CHARS = 200
PROBES = ("/live", "/health", "/ping", "/ready")  # some orchestrators send several per second


def configure_access_log(enabled: bool) -> None:
    log.disabled = not enabled


def log_answered(exchange: Exchange) -> None:
    """Log an answered request; probes at debug level."""
    level = logging.DEBUG if exchange.path in PROBES else logging.INFO
    if log.isEnabledFor(level):
        duration_ms = 1000 * (time.monotonic() - exchange.arrival)
        fields = {
            "method": exchange.scope["method"],
            "path": exchange.path[:MAX_PATH_CHARS],
            "status": exchange.status or CLIENT_LEFT,
            "duration_ms": round(duration_ms, 1),
            "client": client_name(exchange.scope.get("client")),
            "request_id": exchange.request_id,
        }
        _log(level, fields)


def log_refused(client: Any, status: int, why: str) -> None:
    """Log a connection whose bytes were not a request."""
    if log.isEnabledFor(logging.INFO):
        _log(logging.INFO, {"status": status, "client": client_name(client), "error": why})


def client_name(address: Any) -> str:
    return f"{address[0]}:{address[1]}" if address else "unix"


def _log(level: int, fields: dict[str, Any]) -> None:
    text = " ".join(f"{name}={value!r}" if name == "error" else f"{name}={value}" for name, value in fields.items())
    log.log(level, "%s", text, extra={"fields": fields})
