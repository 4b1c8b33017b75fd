from collections.abc import Iterator

import pytest

from .serving import Server, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """An HTTP server with the demo model, shared by the tests of one file."""
    with serving() as running:
        yield running
