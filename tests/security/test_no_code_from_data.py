"""No process executes what it receives: no source can, and a tripwire in each process stays silent."""

import ast
import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from paged_serve.frontend.client.async_client import AsyncClient
from paged_serve.frontend.config.model_folder import find_model_folder
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.engine_core import Utility
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..chaos.faults import run_dir, wait_ended
from ..end_to_end.server_process import ROOT, ServerProcess

TRIPWIRE = Path(__file__).parent / "tripwire"
ROOMS = ("protocol", "engine_core", "workers", "frontend", "scripts")
NEVER_CALLED = {"eval", "exec", "compile", "__import__"}
NEVER_ATTRIBUTES = {  # module -> its functions that run code contained in data
    "torch": {"load", "jit"},
    "pickle": {"load", "loads", "Unpickler"},
    "marshal": {"load", "loads"},
    "yaml": {"load", "unsafe_load"},
    "numpy": {"load"},
    "np": {"load"},
}
ALLOWED = {"scripts/faults/mutants.py": {"compile"}}  # it makes damaged copies of our own sources
SOCKET_CALLS = {"recv_pyobj", "send_pyobj"}
HARMLESS = {"re.compile", "self._lib.compile"}


def calls(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield node.lineno, node.func


@pytest.mark.parametrize("room", ROOMS)
def test_no_source_calls_a_function_that_executes_data(room):
    for path in sorted((ROOT / room).rglob("*.py")):
        for line, function in calls(path):
            where = f"{path.relative_to(ROOT)}:{line} calls {ast.unparse(function)}"
            if isinstance(function, ast.Name):
                allowed = ALLOWED.get(path.relative_to(ROOT).as_posix(), set())
                assert function.id not in NEVER_CALLED - allowed, where
            elif isinstance(function, ast.Attribute):
                owner = ast.unparse(function.value)
                assert function.attr not in NEVER_ATTRIBUTES.get(owner, ()), where
                assert function.attr not in SOCKET_CALLS, where


def test_a_model_in_the_current_folder_brings_no_modules(tmp_path, monkeypatch):
    """The process that converts a GGUF file runs where the user does: beside the files of the model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("raise SystemExit('json.py was executed')\n")
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ConfigError, match="not a usable GGUF file"):
        find_model_folder("model.gguf")


@pytest.mark.parametrize(
    "code",
    [
        "import pickle; pickle.loads(pickle.dumps(1))",
        "eval('1 + ' + '1')",
        "exec('x = 1')",
        "import marshal; marshal.loads(marshal.dumps(1))",
    ],
)
def test_the_tripwire_detects_executed_data(tmp_path, code):
    script = tmp_path / "script.py"
    script.write_text(f"def receive():\n    {code}\nreceive()\n")
    environment = {**os.environ, "TRIPWIRE": str(tmp_path), "PYTHONPATH": str(TRIPWIRE)}
    outcome = subprocess.run([sys.executable, script], env=environment, capture_output=True, check=False)
    assert outcome.returncode < 0, outcome
    assert list(tmp_path.glob("tripped-*"))


async def use_everything(server: ServerProcess) -> None:
    async with await AsyncClient.connect(str(run_dir(server))) as client:
        params = SamplingParams(n=2, logprobs=2, prompt_logprobs=1, max_tokens=8, seed=1)
        assert [delta async for delta in client.submit([5, 6, 7], params)]
        for utility in (Utility.STATS, Utility.DUMP_STATE, Utility.CHECK_INVARIANTS):
            assert await client.utility(utility)


def wait_until_all_are_watched(server: ServerProcess, trips: Path) -> None:
    """Each process leaves a file as soon as it has begun; one that was started just now has not yet."""
    deadline = time.monotonic() + 60
    while True:
        watched = {int(path.name.removeprefix("armed-")) for path in trips.glob("armed-*")}
        if {child.pid for child in psutil.Process(server.process.pid).children()} <= watched:
            return
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_server_in_use_never_executes_data(tmp_path_factory, monkeypatch):
    tmp_path = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TRIPWIRE", str(tmp_path / "trips"))
    (tmp_path / "trips").mkdir()
    server = ServerProcess(tmp_path, import_path=TRIPWIRE)
    try:
        server.wait_ready()
        plain = server.complete(n=2, logprobs=3, stop=["the"])
        assert server.complete(n=2, logprobs=3, stop=["the"]) == plain
        assert "".join(server.stream())
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
        chat = {"model": "demo", "messages": [{"role": "user", "content": "{{ 7 * 7 }}"}], "max_tokens": 4}
        for body in (chat, {**chat, "tools": tools}):
            with server.ask("POST", "/v1/chat/completions", body) as response:
                assert response.status == 200, response.read()
        asyncio.run(use_everything(server))
        for role in ("engine-core", "frontend"):  # the worker ends with its core
            children = server.children()
            children[role].kill()
            children[role].wait()
            server.complete_when_ready()
        wait_until_all_are_watched(server, tmp_path / "trips")
        server.process.terminate()
        assert wait_ended(server) == 0
    finally:
        server.close()
    trips = [path.read_text() for path in (tmp_path / "trips").glob("tripped-*")]
    assert not trips, "\n".join(trips)[:8000]
