"""A real link over a unix socket, and random messages for it."""

import math
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paged_serve.protocol.messages.engine_core import FromEngineCore, ToEngineCore
from paged_serve.protocol.messages.handshake import identity
from paged_serve.protocol.transport.async_channel import AsyncDealerChannel
from paged_serve.protocol.transport.authentication import Authenticator, read_secret
from paged_serve.protocol.transport.channel import DealerChannel, RouterChannel, new_context
from paged_serve.protocol.transport.run_dir import ENGINE_SOCKET, SECRET_FILE, endpoint

from .random_messages import struct_of

RandomMessage = Callable[[Any, random.Random], Any]


@pytest.fixture(scope="session")
def random_message() -> RandomMessage:
    """(type, random.Random) -> a valid message of that type."""
    return struct_of


class Link:
    """A bound ROUTER with an authenticator, as in the engine core, and the peers that connect to it."""

    def __init__(self, run_dir: str):
        self.run_dir = run_dir
        self.endpoint = endpoint(run_dir, ENGINE_SOCKET)
        self.secret = read_secret(run_dir)
        self.context = new_context()
        self.authenticator = Authenticator(self.context, self.secret)
        self.router = RouterChannel[Any, Any](self.context, self.endpoint, ToEngineCore, queue_frames=100)
        self.opened: list[Any] = [self.router]

    def dealer(self, **options: Any) -> DealerChannel[Any, Any]:
        return self._open(DealerChannel, options)

    def async_dealer(self, **options: Any) -> AsyncDealerChannel[Any, Any]:
        return self._open(AsyncDealerChannel, options)

    def _open(self, kind: Any, options: dict[str, Any]) -> Any:
        settings = {"secret": self.secret, "identity": identity("client", 0, 0), "queue_frames": 100} | options
        channel = kind(self.context, self.endpoint, receives=FromEngineCore, **settings)
        self.opened.append(channel)
        return channel

    def deliver(self, timeout_s: float = 60.0) -> tuple[bytes, Any] | None:
        """Wait for the next message of the bound end."""
        deadline = time.monotonic() + timeout_s
        while (received := self.router.receive()) is None and (left_s := deadline - time.monotonic()) > 0:
            self.router.socket.poll(math.ceil(1000 * left_s))
        return received

    def close(self) -> None:
        for channel in self.opened:
            channel.close()
        self.authenticator.close()
        self.context.term()


@pytest.fixture
def run_dir() -> Iterator[str]:
    """A short directory; `tmp_path` can be too long for a socket's path."""
    path = tempfile.mkdtemp(prefix="paged-serve-test-")
    secret = Path(path, SECRET_FILE)
    secret.write_text("correct horse battery staple")
    secret.chmod(0o600)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def link(run_dir: str) -> Iterator[Link]:
    link = Link(run_dir)
    yield link
    link.close()
