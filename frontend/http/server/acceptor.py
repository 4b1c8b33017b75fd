"""Accepts connections at a steady rate, however busy the loop is.

uvloop's servers accept one connection per turn of the loop. While hundreds of connections are busy, a turn takes long,
and new ones, a load balancer's health check among them, would wait for seconds. An idle frontend does take only one per
turn, so that all frontends of the listening socket get their share of a burst.
"""

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import Callable

ACCEPTS_PER_S = 500  # while connections wait, besides one per turn
MAX_PER_TURN = 64
PAUSE_S = 0.1  # when there is no file or memory for another connection
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Accepts from `listener`, which it owns and which must be listening and not blocking, until `close`."""

    def __init__(self, listener: socket.socket, connect: Callable[[], asyncio.Protocol]):
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._connect = connect
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._turn_s = 0.0  # how long the loop's turn after the last accepted connection took
        self._listen()

    def close(self) -> None:
        """Accept nothing more. Repeated calls do nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._listener)
            self._listener.close()

    def refuse(self) -> None:
        """Have the kernel refuse connections, for all processes with this socket: a proxy then tries another server.

        Otherwise it would accept them until the last process closes the socket, and break them then.
        """
        if not self._is_closed:
            self._accept()
            with contextlib.suppress(OSError):  # another process was faster
                self._listener.shutdown(socket.SHUT_RDWR)
            self.close()

    async def wait_closed(self) -> None:
        """Wait for the connections that were just accepted."""
        await asyncio.gather(*self._tasks)

    def _listen(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        self._loop.call_soon(self._measure_turn, time.monotonic())
        for _ in range(min(MAX_PER_TURN, 1 + int(ACCEPTS_PER_S * self._turn_s))):
            try:
                link, _ = self._listener.accept()
            except BlockingIOError:
                return None
            except OSError as error:  # otherwise of that connection, whose peer has gone
                if error.errno == errno.EINVAL:  # another process has called `refuse`
                    return self.close()
                if error.errno in _EXHAUSTED:
                    self._loop.remove_reader(self._listener)
                    self._loop.call_later(PAUSE_S, self._listen)
                    return None
            else:
                task = self._loop.create_task(self._begin(link))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return None

    def _measure_turn(self, began: float) -> None:
        self._turn_s = time.monotonic() - began

    async def _begin(self, link: socket.socket) -> None:
        link.setblocking(False)
        with contextlib.suppress(OSError):  # the peer has gone
            await self._loop.connect_accepted_socket(self._connect, link)
