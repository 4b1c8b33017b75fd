"""Generated requests, valid and invalid: the answers match the OpenAPI document."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..serving import serving

PROGRAM = shutil.which("st", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
CASES_PER_OPERATION = int(os.environ.get("PAGED_SERVE_TEST_SCHEMATHESIS_CASES", 500))  # 16_500 make 100,000 in total
FIRST_SEED = int(os.environ.get("PAGED_SERVE_TEST_SCHEMATHESIS_SEED", 1))
SEEDS = (FIRST_SEED, FIRST_SEED + 1)  # of two concurrent programs
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance"),
    *("response_schema_conformance", "negative_data_rejection", "allow_header_conformance"),
)
# Not checked: that every request that matches the schema is accepted, because no schema expresses rules between fields.
# 504 is not a server error here, but the answer to a request with a timeout. A list with too many items may also make a
# body with too many bytes.
CONFIGURATION = """[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "504"]
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429, "5xx"]
"""


def start(url: str, seed: int, folder: Path) -> subprocess.Popen[str]:
    folder.mkdir()
    (folder / "schemathesis.toml").write_text(CONFIGURATION)
    options = {
        "phases": "coverage,fuzzing",
        "checks": ",".join(CHECKS),
        "max-examples": str(CASES_PER_OPERATION // len(SEEDS)),
        "seed": str(seed),
        "workers": "1",  # ast of CPython 3.11 counts recursion for all threads at once, and Hypothesis parses lambdas
        "request-timeout": "60",
        "suppress-health-check": "all",
    }
    flags = [word for name, value in options.items() for word in (f"--{name}", value)]
    command = [PROGRAM, "run", f"{url}/openapi.json", "--continue-on-failure", "--no-shrink", *flags]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.nightly
@pytest.mark.timeout(0)
@pytest.mark.skipif(PROGRAM is None, reason="schemathesis is not installed; `just setup` brings it")
def test_thousands_of_generated_requests_cause_no_server_error_and_match_the_openapi_document(tmp_path):
    stored = "--store-responses", str(tmp_path / "stored")
    with serving("--max-model-len", "128", "--num-blocks", "256", "--threads", "1", *stored) as server:
        programs = [start(server.url, seed, tmp_path / str(seed)) for seed in SEEDS]
        outputs = [program.communicate()[0] for program in programs]
        assert [program.returncode for program in programs] == [0, 0], "\n".join(outputs)
        assert server.get("/ready")[0] == 200
        assert server.stop() == 0
        assert "Traceback" not in server.output()
    generated = [int(found[1]) for text in outputs if (found := re.search(r"(\d+) generated", text))]
    print("cases:", generated)
    assert sum(generated) >= 2000
