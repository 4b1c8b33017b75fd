"""The proxies' configurations agree with the server's limits, times and routes."""

import re

from paged_serve.frontend.http.connections.http_protocol import MAX_HEADER_BYTES
from paged_serve.frontend.http.exchange.body import MAX_BODY_BYTES
from paged_serve.frontend.http.server.app import PROBES
from paged_serve.frontend.http.server.uvicorn_server import KEEP_ALIVE_S
from paged_serve.protocol.messages.config import ServerConfig

from .files import DEPLOY

NGINX, HAPROXY, APACHE, CADDY = (
    (DEPLOY / "proxies" / name).read_text() for name in ("nginx.conf", "haproxy.cfg", "apache.conf", "Caddyfile")
)
MAX_EXCESS = 1.25  # of a proxy's limit over the server's


def number(pattern: str, text: str) -> int:
    """The number in the only place where `pattern` matches."""
    [found] = re.findall(pattern, text)
    return int(found)


def test_limits_are_slightly_above_the_servers_so_that_its_errors_reach_the_client():
    body = number(r"client_max_body_size (\d+)m;", NGINX) << 20
    assert MAX_BODY_BYTES < body <= MAX_EXCESS * MAX_BODY_BYTES
    headers = [
        number(r"large_client_header_buffers 4 (\d+)k;", NGINX) << 10,
        number(r"tune.bufsize (\d+)", HAPROXY),
        number(r"LimitRequestLine (\d+)", APACHE),
        number(r"LimitRequestFieldSize (\d+)", APACHE),
    ]
    assert all(MAX_HEADER_BYTES < limit <= MAX_EXCESS * MAX_HEADER_BYTES for limit in headers)


def test_proxies_wait_for_longer_than_a_stream_is_silent_and_close_idle_connections_first():
    waits = [
        number(r"proxy_read_timeout (\d+)s;", NGINX),
        number(r"timeout server (\d+)s", HAPROXY),
        number(r"ProxyPass .* timeout=(\d+)", APACHE),
    ]
    assert min(waits) > ServerConfig().sse_keep_alive_interval_s
    assert max(number(r"keepalive (\d+)s", CADDY), number(r"timeout http-keep-alive (\d+)s", HAPROXY)) < KEEP_ALIVE_S


def test_health_checks_ask_the_route_for_load_balancers():
    checked = re.findall(r"(?:meth GET uri|health_uri) (\S+)", HAPROXY + CADDY)
    assert checked == ["/ready", "/ready"]
    assert "/ready" in PROBES
