"""Serves the chat page and /docs. Their files hold no secrets: a browser without a key gets the page to enter one."""

from pathlib import Path
from typing import TYPE_CHECKING

from ..exchange.errors import HttpError
from ..exchange.exchange import Exchange

if TYPE_CHECKING:
    from ..service import Service

FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
}
_SCRIPTS = (
    "app",
    "client",
    "conversation",
    "docs",
    "dom",
    "inline",
    "markdown",
    "scroll",
    "settings",
    "store",
    "turns",
)
FILES_BY_PATH = {
    "/": "index.html",
    "/docs": "docs.html",
    "/page/page.css": "page.css",
    "/page/docs.css": "docs.css",
    **{f"/page/{name}.js": f"{name}.js" for name in _SCRIPTS},
}
# Scripts and styles come only from files of this server, and no string becomes markup: model text is never code.
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    b"frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    b"require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
]


def is_page_file(method: str, path: str) -> bool:
    """Whether the request is for a file of a page, which needs no key."""
    return method in ("GET", "HEAD") and path in FILES_BY_PATH


async def send_page_file(service: "Service", exchange: Exchange) -> None:
    """Send a file of a page. Raises HttpError 404 for any other path."""
    name = FILES_BY_PATH.get(exchange.path)
    if name is None:
        raise HttpError(404, f"There is no {exchange.path[:200]} here; the routes are listed at /docs.")
    path = FOLDER / name
    await exchange.send(200, path.read_bytes(), [(b"content-type", _TYPES[path.suffix]), *_HEADERS])
