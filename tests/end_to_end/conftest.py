from collections.abc import Iterator

import pytest

from .serving import Server, serving


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    """An HTTP server with the demo model, shared by tests that only ask it or kill its frontend.

    It answers too what other servers, which are crowded or lose processes, are compared with.
    """
    with serving("--max-restarts", "100") as running:
        yield running
