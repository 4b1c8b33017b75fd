"""Mutated HTTP on raw sockets: the server refuses or answers, never with 500, and the next good request is served."""

import json
import os
import time
from collections.abc import Iterator

import pytest

from ...end_to_end.serving import Server, serving
from .http_fuzz import fuzz, is_refusal_by_name

CI_COUNT = 400
NIGHTLY_COUNT = int(os.environ.get("PAGED_SERVE_TEST_FUZZ_COUNT", 1_000_000))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--max-model-len", "128", "--num-blocks", "256", "--threads", "1") as running:
        yield running


@pytest.mark.parametrize(
    "count", [CI_COUNT, pytest.param(NIGHTLY_COUNT, marks=[pytest.mark.nightly, pytest.mark.timeout(0)])]
)
def test_no_bytes_cause_a_server_error(server, count):
    started = time.monotonic()
    seen = fuzz(server, seed=count, count=count)
    assert seen.total() >= count
    assert min(seen[200], seen[400]) > 0
    print(f"{count} requests in {time.monotonic() - started:.1f} s: {dict(sorted(seen.items()))}")


@pytest.mark.parametrize(("path", "is_named"), [("/v1/chat", True), ("/api/chat", True), ("/v1/completions", False)])
def test_only_routes_of_other_servers_may_be_unsupported(server, path, is_named):
    status, error = server.post(path, {"prompt": 1})
    assert (status == 501) == is_named
    said = error if is_named else {"error": {"message": f"{path} is not served here: it is not."}}
    answer = b"HTTP/1.1 501 Not Implemented\r\n\r\n" + json.dumps(said).encode()
    assert is_refusal_by_name(answer) == is_named
