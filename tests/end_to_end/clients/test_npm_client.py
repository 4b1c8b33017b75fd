"""The official npm `openai` client against a real server: the most common calls of JavaScript users."""

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("npm_client.mjs")
MISSING = [name for name in ("node", "npm") if shutil.which(name) is None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder with the installed client."""
    folder = tmp_path_factory.mktemp("npm")
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "openai"], cwd=folder, check=True, capture_output=True)
    shutil.copy(SCRIPT, folder)
    return folder


@pytest.mark.nightly
@pytest.mark.skipif(bool(MISSING), reason=f"{' and '.join(MISSING)} not found")
def test_sixty_four_concurrent_streams_of_the_npm_client_equal_their_whole_answers(folder, server):
    command = ["node", SCRIPT.name, server.url]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["texts"] == [seen["whole"][i % 16] for i in range(64)]
    assert seen["final"] == seen["whole"][0]
    assert seen["usage"]["total_tokens"] == seen["usage"]["prompt_tokens"] + seen["usage"]["completion_tokens"]
    assert seen["models"] == ["demo"]
    assert (seen["refusal"]["name"], seen["refusal"]["status"]) == ("BadRequestError", 400)
    assert seen["refusal"]["param"] == "max_tokens"
    assert seen["chunksBeforeAbort"] == 3
    deadline = time.monotonic() + 60  # the abandoned stream is aborted, not generated to its end
    while 'paged:num_requests_running{engine="0",model_name="demo"} 0.0' not in server.metrics():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert re.search(r'^paged:request_success_total\{.*finished_reason="abort".*\} [1-9]', server.metrics(), re.M)
