"""The connecting end of a channel for asyncio; a separate file saves engine core and workers asyncio's 4 MB."""

import asyncio
import time
from typing import Any

import zmq

from ..errors import ProtocolError
from ..forks import in_forked_child
from .channel import FRAMES_PER_ITERATION, SECONDS_PER_ITERATION, Dealer, Receives, Sends, take


class AsyncDealerChannel(Dealer[Sends, Receives]):
    """A connecting end for asyncio or uvloop; made inside the running loop. One task receives at a time.

    The socket's descriptor is edge-triggered: it signals that libzmq has work, not that a message is there, and any
    call on the socket may consume the signal. So `receive` checks for messages and for a lost connection before it
    waits, and `send` checks afterwards.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._was_cut = False
        self._turn_ends = 0.0
        self._frames_left = 0
        self._is_ours = True
        in_forked_child(self, AsyncDealerChannel._release)
        self._loop.add_reader(self.socket.fileno(), self._wake)

    def _release(self) -> None:
        """Stop reacting in a forked child, whose loop may run once more when it ends.

        Reading the socket's events there, or removing its reader, would take the signal away from the parent.
        """
        self._is_ours = False

    def _wake(self) -> None:
        if not self._is_ours:
            return
        # Reading the events clears the descriptor; otherwise the loop would spin on it.
        events = int(self.socket.get(zmq.EVENTS))
        self._was_cut |= not events & zmq.POLLOUT
        if events & zmq.POLLIN and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def send(self, message: Sends) -> bool:
        sent = super().send(message)
        if self._waiter is not None:
            self._wake()
        return sent

    def takes_messages(self) -> bool:
        """Also False if the connection was lost since the last call: the other end may be a new process now."""
        takes = super().takes_messages() and not self._was_cut
        self._was_cut = False
        if self._waiter is not None:
            self._wake()
        return takes

    async def receive(self) -> Receives:
        """The next message. Lets other tasks run after every 64 frames or 2 ms. Raises ProtocolError after `close`."""
        while True:
            if self._frames_left <= 0 or time.monotonic() > self._turn_ends:
                await asyncio.sleep(0)
                self._begin_turn()
            if self.socket.closed:
                raise ProtocolError("the channel is closed")
            try:
                self._frames_left -= 1
                message = self.codec.decode(take(self.socket, expected=1))
            except zmq.Again:
                await self._readable()
                self._begin_turn()
            else:
                if message is not None:
                    return message

    def _begin_turn(self) -> None:
        self._frames_left = FRAMES_PER_ITERATION
        self._turn_ends = time.monotonic() + SECONDS_PER_ITERATION

    async def _readable(self) -> None:
        assert self._waiter is None, "two tasks receive from one channel"
        self._waiter = self._loop.create_future()
        self._wake()  # the last call may have consumed the signal of a lost connection
        try:
            await self._waiter
        finally:
            self._waiter = None

    def close(self, linger_s: float = 0.0) -> None:
        if not self.socket.closed:
            self._loop.remove_reader(self.socket.fileno())
            self.socket.close(linger=int(1000 * linger_s))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
