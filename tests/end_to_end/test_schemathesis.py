"""Generated requests, right and wrong, against the OpenAPI document: the server keeps what it promises there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .serving import serving

PROGRAM = shutil.which("st", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
CASES_PER_OPERATION = int(os.environ.get("PAGED_SERVE_SCHEMATHESIS_CASES", 500))  # 12_000 make 100,000 in all
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance"),
    *("response_schema_conformance", "negative_data_rejection", "allow_header_conformance"),
)
# Not among them: that whatever fits the schema is accepted. Rules between fields are no schema's matter.


@pytest.mark.nightly
@pytest.mark.timeout(0)
@pytest.mark.skipif(PROGRAM is None, reason="schemathesis is not installed; `just setup` brings it")
def test_thousands_of_generated_requests_find_no_server_error_and_no_broken_promise(tmp_path):
    options = {
        "phases": "coverage,fuzzing",
        "checks": ",".join(CHECKS),
        "max-examples": str(CASES_PER_OPERATION),
        "seed": "1",
        "workers": "2",
        "request-timeout": "60",
        "suppress-health-check": "all",
    }
    flags = [word for name, value in options.items() for word in (f"--{name}", value)]
    with serving("--max-model-len", "128", "--num-blocks", "256", "--threads", "1") as server:
        command = [PROGRAM, "run", f"{server.url}/openapi.json", "--continue-on-failure", "--no-shrink", *flags]
        done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
        assert server.get("/ready")[0] == 200
        assert server.stop() == 0
        assert "Traceback" not in server.output()
    generated = re.search(r"(\d+) generated", done.stdout)
    assert generated is not None, done.stdout
    assert int(generated[1]) >= 2000
