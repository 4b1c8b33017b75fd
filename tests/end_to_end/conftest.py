from collections.abc import Iterator

import pytest

from .serving import Server, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The demo model behind HTTP, shared by one file's tests."""
    with serving() as running:
        yield running
