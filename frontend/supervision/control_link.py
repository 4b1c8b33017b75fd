"""The supervisor's end of the control socket, which also waits for other descriptors."""

from collections.abc import Iterable

import zmq

from paged_serve.protocol.messages.control import FromChild, ToChild
from paged_serve.protocol.messages.handshake import check_hello
from paged_serve.protocol.messages.message import Hello
from paged_serve.protocol.transport.authentication import Authenticator, read_secret
from paged_serve.protocol.transport.channel import RouterChannel, new_context
from paged_serve.protocol.transport.run_dir import CONTROL_SOCKET, endpoint

MAX_MESSAGES_PER_ITERATION = 1024


class ControlLink:
    """Binds the control socket in the run directory."""

    def __init__(self, run_dir: str) -> None:
        self._context = new_context()
        self._authenticator = Authenticator(self._context, read_secret(run_dir))
        self._channel = RouterChannel[ToChild, FromChild](self._context, endpoint(run_dir, CONTROL_SOCKET), FromChild)

    def wait(self, timeout_s: float, descriptors: Iterable[int]) -> set[int]:
        """Sleep until a message arrives or one of `descriptors` is readable; returns the readable ones."""
        poller = zmq.Poller()
        for waited_for in (self._channel.socket, *descriptors):
            poller.register(waited_for, zmq.POLLIN)
        found = poller.poll(max(0, int(1000 * timeout_s) + 1))
        return {handle for handle, _ in found if isinstance(handle, int)}

    def has_message_within(self, timeout_s: float) -> bool:
        return bool(self._channel.socket.poll(int(1000 * timeout_s)))

    def received(self) -> list[tuple[bytes, FromChild]]:
        """The messages received, with their senders' identities; bounded, so that no child can hold up the loop."""
        messages: list[tuple[bytes, FromChild]] = []
        while len(messages) < MAX_MESSAGES_PER_ITERATION and (message := self._channel.receive()) is not None:
            messages.append(message)
        return messages

    def reason_to_refuse(self, hello: Hello) -> str:
        """Why the sender must be refused; "" when its protocol version and message definitions match."""
        return check_hello(hello)

    def send(self, peer: bytes, message: ToChild) -> None:
        """Send, or drop the message if the peer is gone or does not read: its process handle or silence shows it."""
        if peer:
            self._channel.send(peer, message)

    def close(self) -> None:
        self._channel.close()
        self._authenticator.close()
        self._context.term()
