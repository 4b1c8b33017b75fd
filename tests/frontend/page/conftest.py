from collections.abc import Callable, Iterator

import pytest

from ...end_to_end.serving import Server, serving
from .chromium import Chromium, Page, find_chromium
from .scripted_server import ScriptedServer


@pytest.fixture(scope="module")  # tests of other modules count the processes that remain
def chromium() -> Iterator[Chromium]:
    path = find_chromium()
    if path is None:
        pytest.skip("the chat page is tested in Chromium, which is not installed (Debian: apt-get install chromium)")
    browser = Chromium(path)
    yield browser
    browser.close()


@pytest.fixture
def new_page(chromium) -> Iterator[Callable[..., Page]]:
    """new_page(**size): a page that is closed with the test; the test fails if the page has errors."""
    pages: list[Page] = []

    def open_page(**size) -> Page:
        pages.append(chromium.page(**size))
        return pages[-1]

    yield open_page
    for page in pages:
        errors = page.errors()
        page.close()
        assert not errors


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--threads", "1", "--num-blocks", "256") as running:
        yield running


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    """A server with the real files of the page and answers written by the test."""
    running = ScriptedServer()
    yield running
    running.close()
