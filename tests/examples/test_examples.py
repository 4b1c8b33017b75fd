"""Every program of examples/ runs as its docstring describes, with the demo model, and leaves no process."""

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from paged_serve import LLM, InvalidRequest

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = sorted((ROOT / "examples").glob("*.py"))
EXPECTED = {  # regular expressions that the output must match
    "async_engine": [r"The capital of Japan is Tokyo\.", r"The capital of Italy is Rome\.\n", r"aborted: abort after"],
    "chat": [r"assistant: The capital of Italy is Rome\.", r"assistant: The capital of Peru is Lima\."],
    "embedded": [r"^ ?Paris\.$"],
    "kv_events": [r"^(\d+) of \1 blocks of the prompt are in the cache$"],
    "offline": [r"The capital of Japan is Tokyo\.", r"three samples: \["],
    "offline_tools": [
        r"calls \{'name': 'get_weather', 'arguments': '\{\"city",
        r"18 degrees",
        r"\{'city': '(Paris|Rome)', 'degrees': \d",
    ],
    "quantized": [r"bfloat16 .* MB of weights: .*Rome", r"int8 .* MB of weights: .*Rome", r"relative RMS"],
    "server_and_clients": [r"chat: .* Rome\.", r"stream:  Lima\. in \d+ pieces", r"HTTP: .*Paris"],
    "streams_that_survive_kills": [
        r"worker killed after \d+ characters; the longest pause was \d",
        r"^the same bytes$",
    ],
    "tensor_parallel": [r"the same texts with one rank and with two: True"],
    "zeromq_client": [r"Paris", r"the same tokens: True"],
}


# Programs that start several engines, or one several times, or whose class end_to_end/operation/test_kv_events.py uses;
# end_to_end/ does the same by other programs.
LONG = ("kv_events", "quantized", "streams_that_survive_kills", "tensor_parallel")
ON_ONE_ENGINE = (
    "chat",
    "offline_tools",
    "zeromq_client",
)  # in the fast tests: theirs starts as offline's


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(path, marks=[pytest.mark.nightly] if path.stem in LONG + ON_ONE_ENGINE else [], id=path.stem)
        for path in PROGRAMS
    ],
)
def test_a_program_runs_and_prints_what_it_demonstrates(program, tmp_path, short_folder):
    small = {"PAGED_SERVE_NUM_BLOCKS": "256", "PAGED_SERVE_STANDBY_WORKERS": "false"}
    environment = {**os.environ, **small, "PYTHONPATH": str(ROOT), "TMPDIR": str(short_folder)}
    command = [sys.executable, "-W", "error", str(program)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    check_output(program.stem, done.stdout)
    assert not list(short_folder.glob("paged-serve-*/run-*")), "a run directory is left: its engine was not ended"


def check_output(name, output):
    for expression in EXPECTED[name]:
        assert re.search(expression, output, re.MULTILINE), f"{expression!r} is not in:\n{output}"


@pytest.fixture(scope="module")
def llm():
    with LLM(num_blocks=256) as llm:
        yield llm


@pytest.mark.parametrize("name", ON_ONE_ENGINE)
def test_a_program_prints_what_it_demonstrates_with_an_engine_that_is_there(name, llm, monkeypatch, capsys):
    monkeypatch.setattr("paged_serve.LLM", lambda model: nullcontext(llm))
    monkeypatch.setattr("sys.argv", [name])
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    check_output(name, capsys.readouterr().out)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_documents_its_command_and_is_on_the_page(program):
    name = f"examples/{program.name}"
    assert f"    python {name}" in program.read_text().partition('\n"""\n')[0]
    assert f"(../{name})" in (ROOT / "docs" / "llm.md").read_text()


class RefusesAll:
    async def generate(self, prompt, params):
        raise InvalidRequest("the prompt is empty", "prompt_token_ids")
        yield


@pytest.mark.parametrize(
    ("query", "field"), [({"prompt": ""}, "prompt_token_ids"), ({"temperature": "x"}, "temperature")]
)
def test_the_embedded_application_answers_a_refused_request_with_its_field(query, field):
    spec = importlib.util.spec_from_file_location("embedded", ROOT / "examples" / "embedded.py")
    embedded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(embedded)
    embedded.llm = RefusesAll()
    answer = TestClient(embedded.app).get("/complete", params=query)  # without its lifespan, which starts an engine
    assert (answer.status_code, answer.json()["field"]) == (400, field)
