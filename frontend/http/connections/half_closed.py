"""Detects that a client has gone, as opposed to having shut only its sending side: TCP sends a FIN in both cases.

A peer that has closed its socket answers new data with a reset; a peer that has only shut its sending side accepts it.
So an interim response, which every HTTP/1.1 client skips, distinguishes the two before the answer is ready.
"""

import asyncio
import select
import socket
from typing import Any

FIRST_DELAY_S = 0.02
MAX_DELAY_S = 1.0
_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
_TCP_CLOSE = 7  # the state after a reset


class HalfClosed:
    """Watches one connection whose peer has shut its sending side, until `stop`; aborts it when the peer has gone."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: Any):
        self._loop = loop
        self._transport = transport
        self._delay_s = FIRST_DELAY_S
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, *, may_send_interim: bool) -> None:
        """`may_send_interim`: the peer speaks HTTP/1.1, and no part of the final response has been written."""
        if may_send_interim:
            self._transport.write(_INTERIM)
        self._timer = self._loop.call_later(self._delay_s, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if is_reset(self._transport.get_extra_info("socket")):
            self._transport.abort()
            return
        self._delay_s = min(2 * self._delay_s, MAX_DELAY_S)
        self._timer = self._loop.call_later(self._delay_s, self._look)


def is_reset(link: Any) -> bool:
    """Whether the peer has closed its socket. A unix socket reports it at once, a TCP socket after data was sent."""
    if link.family == socket.AF_UNIX:
        return _has_hung_up(link)
    return bool(link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE)


def _has_hung_up(link: Any) -> bool:
    poll = select.poll()
    poll.register(link.fileno(), 0)
    return any(events & select.POLLHUP for _, events in poll.poll(0))
