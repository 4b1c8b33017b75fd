import time
from collections.abc import Iterator

import pytest

from .serving import Server, serving


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    """An HTTP server with the demo model, shared by tests that need no options of their own; some kill its processes.

    It answers too what other servers, which are crowded or lose processes, are compared with.
    """
    with serving("--max-restarts", "100", "--sse-keep-alive-interval", "0") as running:  # pings are no events
        yield running


@pytest.fixture(scope="package")
def pair() -> Iterator[Server]:
    options = ("--threads", "1", "--num-blocks", "512", "--max-restarts", "1000", "--admin-port", "0")
    opened = ("--allowed-origins", '["https://app.example", "null"]', "--allowed-hosts", "llm.example")
    opened += ("--root-path", "/llm", "--allow-lora-loading")
    with serving("--api-server-count", "2", *options, *opened) as running:
        yield running


@pytest.fixture
def two_frontends(pair: Server) -> Server:
    """A shared server with two frontends, both of which answer: an earlier test may have killed one."""
    deadline = time.monotonic() + 60
    while not all(map(pair.is_frontend_up, range(2))):
        assert time.monotonic() < deadline, pair.output()
        time.sleep(0.02)
    return pair
