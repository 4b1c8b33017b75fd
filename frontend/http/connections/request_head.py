"""Faults of a request's head. Its host is that of its only Host header, or of an absolute URI (RFC 9112, 3.2)."""

import re

import httptools

from ..exchange.errors import Headers

_HOST = re.compile(rb"[!$&'()*+,;=A-Za-z0-9._~%:\[\]-]*")  # a name or an address, then perhaps a port; or nothing


def fault_of_head(version: str, url: bytes, headers: Headers) -> str:
    """Why a proxy might read the head as a different request (request smuggling); "" when it is unambiguous.

    `version`: of HTTP, as in "1.1".
    """
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if version not in ("1.0", "1.1"):
        return "This server speaks HTTP/1.1."
    if codings and (codings != [b"chunked"] or version == "1.0"):
        return "The only Transfer-Encoding here is chunked, in HTTP/1.1."
    return _fault_of_host(version, url, headers)


def _fault_of_host(version: str, url: bytes, headers: Headers) -> str:
    """Why the request's host is invalid; "" when it is valid."""
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1 or (not hosts and version == "1.1"):
        return f"The request has {len(hosts)} Host headers; in HTTP/1.1 it must have one."
    if any(not _HOST.fullmatch(host) for host in hosts):
        return "The Host header is not a host: give a name or an address, and the port unless it is the default."
    if not url.startswith(b"/") and b"://" in url:
        try:
            target = httptools.parse_url(url)
        except httptools.HttpParserInvalidURLError:
            return "The request's URI cannot be read."
        if target.userinfo or not _HOST.fullmatch(target.host):
            return "The request's URI must have a host, and no user before it."
    return ""


def replace_host(url: bytes, headers: Headers) -> None:
    """Replace the Host header in `headers` by the host of an absolute URI."""
    if url.startswith(b"/") or b"://" not in url:
        return
    target = httptools.parse_url(url)
    host = b"[%s]" % target.host if b":" in target.host else target.host
    authority = host if target.port is None else b"%s:%d" % (host, target.port)
    headers[:] = [(name, value) for name, value in headers if name != b"host"] + [(b"host", authority)]
