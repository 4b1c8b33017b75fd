"""The page /docs in a browser: every route and field of the server's OpenAPI document, and the key that it may need."""

import json

import pytest

from ...end_to_end.server_process import ServerProcess

READY = "document.querySelectorAll('.route').length > 0"
SUMMARIES = "[...document.querySelectorAll('.route:not([hidden]) > summary')]"
ROUTES = SUMMARIES + ".map(each => each.innerText.split(/\\s+/, 2).join(' '))"
FIELDS = "[...document.querySelectorAll('.route[open] td:first-child')].map(each => each.innerText)"


@pytest.fixture
def page(new_page, server):
    page = new_page()
    page.open(server.url + "/docs")
    page.until(READY)
    return page


def test_all_routes_are_listed_and_found_by_a_field(page, server):
    document = json.loads(server.get("/openapi.json")[1])
    wanted = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert set(page.evaluate(ROUTES)) == wanted
    page.fill("#search", "max_completion_tokens")
    page.until("document.querySelectorAll('.route[hidden]').length > 0")
    assert "POST /v1/chat/completions" in page.evaluate(ROUTES)
    assert "GET /version" not in page.evaluate(ROUTES)


def test_a_route_shows_its_fields_and_those_of_its_messages(page):
    page.fill("#search", "/v1/chat/completions")
    page.evaluate("document.querySelector('.route:not([hidden]) > summary').click()")
    page.until("document.querySelector('.route[open] details')")
    page.evaluate("document.querySelector('.route[open] details > summary').click()")
    page.until(f"{FIELDS}.includes('temperature')")
    page.evaluate(
        "[...document.querySelectorAll('.route[open] td details')]"
        ".find(each => each.innerText === 'ChatMessage').firstChild.click()"
    )
    page.until(f"{FIELDS}.includes('content')")


def test_the_key_of_a_server_is_asked_for_and_serves_both_pages(new_page, short_folder):
    server = ServerProcess(short_folder, "--no-standby-workers", "--api-key", "secret")
    try:
        server.wait_ready()
        page, url = new_page(), f"http://127.0.0.1:{server.port}/"
        page.open(url + "docs")
        page.until("!document.getElementById('key-form').hidden")
        assert "A valid API key is required" in page.text()
        page.fill("#key", "secret")
        page.click("Show")
        page.until(READY)
        page.open(url)
        page.until("document.getElementById('model').value !== ''")
    finally:
        server.close()
