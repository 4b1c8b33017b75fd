"""The HTTP server's socket: bound and listening before any process starts, so that a conflict costs nothing."""

import contextlib
import errno
import ipaddress
import os
import socket
import stat

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ServerConfig

from .open_files import max_connections_for, raise_open_files_limit

BACKLOG = 2048  # connections that wait while a frontend is replaced
PROBE_IDLE_AFTER_S, PROBE_EVERY_S = 30, 10  # TCP keepalive, to notice a peer that vanished while waiting
MAX_UNSENT_BYTES = 128 << 10  # in the kernel's buffer, for a peer that does not read; the kernel would hold megabytes
TAKE_WITHIN_MS = 120_000  # a peer that neither reads nor answers probes for so long is dropped


def open_http_socket(server: ServerConfig, port_option: str = "--port") -> socket.socket:
    """Listen at the address of `server`. Raises ConfigError, with the remedy, when that is impossible or unsafe.

    `port_option`: which option sets the port.
    """
    most = max_connections_for(raise_open_files_limit())
    if server.max_connections is not None and server.max_connections > most:
        raise ConfigError(
            f"max_connections={server.max_connections} needs more open files than this user may have: at most {most} "
            "connections fit. Lower --max-connections, or raise the hard limit (ulimit -Hn)"
        )
    if len(server.api_key_weights) > len(server.api_keys):
        raise ConfigError(
            f"the options --api-key-weight and --api-key are given {len(server.api_key_weights)} and "
            f"{len(server.api_keys)} times; weights follow the order of the keys: add --api-key, or leave weights out"
        )
    if server.allow_credentials and "*" in server.allowed_origins:
        raise ConfigError(
            "allow_credentials with allowed_origins=* would let any web page act in its visitor's name; name the "
            "origins, or leave out --allow-credentials"
        )
    if server.uds:
        return open_unix(server.uds)
    if not server.api_keys and not is_loopback(server.host):
        raise ConfigError(
            f"host {server.host} is reachable from other machines, but no API key is set; "
            "give --api-key KEY (or set PAGED_SERVE_API_KEY), or serve on 127.0.0.1"
        )
    return _open_tcp(server.host, server.port, port_option)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def http_url(server: ServerConfig, http_socket: socket.socket) -> str:
    """The URL of the server for users on this machine; "unix:" and the path for a unix socket."""
    if server.uds:
        return f"unix:{server.uds}"
    host, port = http_socket.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "127.0.0.1" if http_socket.family == socket.AF_INET else "::1"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{server.root_path}"


def close_http_socket(http_socket: socket.socket, server: ServerConfig) -> None:
    http_socket.close()
    if server.uds:
        with contextlib.suppress(OSError):  # another server has taken the path since
            _remove_if_abandoned(server.uds)


def _open_tcp(host: str, port: int, port_option: str) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigError(f"host {host!r} is not known here ({error.strerror}); choose another with --host") from None
    # "localhost" may be both: people and proxies expect 127.0.0.1 behind it.
    family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    with contextlib.ExitStack() as on_refusal:
        try:
            listener = on_refusal.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _watch_peers(listener)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError as error:
            raise ConfigError(_why_not(error, host, port, port_option)) from None
        on_refusal.pop_all()
    return listener


def _watch_peers(listener: socket.socket) -> None:
    """Have the kernel close connections whose peer vanished or never reads; accepted sockets inherit the options."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_IDLE_AFTER_S)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EVERY_S)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TAKE_WITHIN_MS)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)


def _why_not(error: OSError, host: str, port: int, port_option: str) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} on {host} is in use; stop the server there, or choose another port with {port_option}"
        case errno.EACCES:
            return f"port {port} needs more rights than this user has; choose one above 1023 with {port_option}"
        case errno.EADDRNOTAVAIL | errno.EAFNOSUPPORT:  # the second: a kernel without IPv6
            return f"host {host} is not an address of this machine; choose another with --host"
        case _:
            return f"cannot listen on {host}:{port}: {error.strerror}"


def open_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    previous_mask = os.umask(0o177)  # only this user may connect
    try:
        _remove_if_abandoned(path)
        listener.bind(path)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on unix socket {path}: {error}; choose another path with --uds") from None
    finally:
        os.umask(previous_mask)
    return listener


def _remove_if_abandoned(path: str) -> None:
    """Remove the socket file of a killed server. A running server answers on its file, which raises OSError."""
    if not (os.path.lexists(path) and stat.S_ISSOCK(os.lstat(path).st_mode)):
        return  # nothing there, or not a socket: bind reports it, and no file is removed
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass  # so many connections wait for it that this one would wait, too
    raise OSError(errno.EADDRINUSE, "a server is listening there")
