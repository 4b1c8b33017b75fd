"""The operator's routes: separate from the public ones, with the metrics of all frontends, and closed to web pages."""

import asyncio
import json

import pytest

from paged_serve.frontend.http.routes.operator.routes import merged
from paged_serve.frontend.http.routes.operator.siblings import answer_of
from paged_serve.protocol.transport.run_dir import ADMIN_SOCKET

from ...http_server import Server, make_model_folder

ENGINE = b'# HELP paged:steps Steps\n# TYPE paged:steps gauge\npaged:steps{engine="0"} 5.0\n'
OWN = b'# HELP paged:ok Good\n# TYPE paged:ok counter\npaged:ok{frontend="%d"} %d.0\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model_folder(tmp_path_factory.mktemp("model"))


def test_each_metric_family_is_contiguous_and_the_engine_appears_once():
    texts = [ENGINE + OWN % (0, 1), b"", ENGINE.replace(b"5.0", b"4.0") + OWN % (1, 2)]
    own = OWN % (0, 1) + b'paged:ok{frontend="1"} 2.0\n'
    assert merged(texts) == ENGINE + own


@pytest.mark.parametrize(("missing", "found"), [(0, b"paged:ok 123.0\n"), (4, b"")])
def test_of_a_frontend_that_ends_within_its_answer_no_part_is_shown(run_dir, missing, found):
    """A series cut short has another value."""
    body = b"paged:ok 123.0\n"
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body[: len(body) - missing])

    async def end(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async def ask():
        async with await asyncio.start_unix_server(end, f"{run_dir}/{ADMIN_SOCKET.format(1)}"):
            return await answer_of(run_dir, 1, "GET", "/metrics/own")

    assert asyncio.run(ask()) == found


def test_the_configuration_is_shown_without_keys(folder):
    server = Server(folder, options={"api_keys": ("a-secret-of-mine", "another-one")})
    text = server.operators("GET", "/server_info")
    assert json.loads(text)["config"]["server"]["api_keys"] == 2
    assert "a-secret-of-mine" not in text
    assert json.loads(text)["config"]["model"]["model"] == str(folder)


@pytest.mark.parametrize("path", ["/reset_mm_cache", "/reset_encoder_cache"])
def test_only_the_operator_may_reset_caches_that_do_not_exist(folder, path):
    server = Server(folder)
    assert server.operators("POST", path) == "{}"
    assert server.ask("POST", path).status_code == 501


def test_public_routes_have_no_metrics_by_default(folder):
    response = Server(folder).ask("GET", "/metrics")
    assert (response.status_code, "--public-metrics" in response.text) == (404, True)
    assert "/metrics" not in Server(folder).ask("GET", "/openapi.json").json()["paths"]
    public = Server(folder, options={"public_metrics": True})
    assert "paged:num_requests_running" in public.ask("GET", "/metrics").text
    assert "/metrics" in public.ask("GET", "/openapi.json").json()["paths"]
    for path in ("/stats", "/state", "/check", "/reset_prefix_cache"):
        for answer in (public.ask("GET", path), public.ask("POST", path)):
            assert (answer.status_code, "--admin-port" in answer.text) == (501, True)
