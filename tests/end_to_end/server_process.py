"""`paged-serve` as users start it, in a separate process, and a small HTTP client for it."""

import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent.parent
PROMPT = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 48, "temperature": 0.8, "seed": 7}
ROLES = {
    "paged_serve.engine_core.process": "engine-core",
    "paged_serve.workers.process": "worker",
    "paged_serve.workers.process.standby": "standby",
    "paged_serve.frontend.http.server": "frontend",
}


def is_alive(process: psutil.Process) -> bool:
    """A zombie is dead; its new parent has not reaped it yet."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class ServerProcess:
    """A server with the demo model on a free port; its run directory and its log are in `temporary`."""

    def __init__(
        self,
        temporary: Path,
        *options: str,
        import_path: Path = ROOT,
        within: Sequence[str] = (),
        run_dirs: Path | None = None,
    ):
        """`import_path`: a folder whose modules take precedence in every process; `within`: a command that executes the
        server's command; `run_dirs`: the folder of the run directory, if not `temporary`."""
        self.temporary = temporary
        self._errors = (temporary / "stderr").open("w")
        path = f"{import_path}{os.pathsep}{ROOT}"
        variables = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(run_dirs or temporary)}
        few = ("--port", "0", "--num-blocks", "256", "--threads", "1")
        command = [*within, sys.executable, "-m", "paged_serve", *few, *options]
        self.began = time.monotonic()
        self.process = subprocess.Popen(command, stderr=self._errors, env=variables, cwd=temporary)

    def stderr(self) -> str:
        return (self.temporary / "stderr").read_text()

    def wait_ready(self, within_s: float = 200.0) -> None:
        while not (found := re.search(r"http +http://127.0.0.1:(\d+)", self.stderr())):
            assert time.monotonic() < self.began + within_s, self.stderr()
            assert self.process.poll() is None, self.stderr()
            time.sleep(0.02)
        self.port = int(found[1])

    def children(self) -> dict[str, psutil.Process]:
        """The children by role; of several workers, the last."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.NoSuchProcess):  # a child that a test has just killed
                role = next((ROLES[word] for word in child.cmdline() if word in ROLES), "")
                if child.name().startswith("worker"):
                    role = "worker"
                if role:  # otherwise it has not executed its program yet
                    found[role] = child
        return found

    def wait_for_text(self, text: str) -> None:
        """Until the log has it, which other processes write after they have answered."""
        deadline = time.monotonic() + 60
        while text not in self.stderr():
            assert time.monotonic() < deadline, f"no {text!r} in {self.stderr()}"
            time.sleep(0.02)

    def wait_for_standby(self) -> psutil.Process:
        """The standby worker, once it is warm."""
        self.wait_for_text("standing by")
        return self.children()["standby"]

    @contextmanager
    def ask(self, method: str, path: str, body: dict | None = None) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            yield connection.getresponse()
        finally:
            connection.close()

    def complete(self, **changes: object) -> str:
        with self.ask("POST", "/v1/completions", {**PROMPT, **changes}) as response:
            answer = json.loads(response.read())
            assert response.status == 200, answer
            return answer["choices"][0]["text"]

    def complete_when_ready(self, **changes: object) -> str:
        """Complete a prompt, retrying after each 503 as clients do."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with self.ask("GET", "/ready") as response:
                if response.status == 200:
                    break
            time.sleep(0.02)
        return self.complete(**changes)

    def stream(self, **changes: object) -> Iterator[str]:
        with self.ask("POST", "/v1/completions", {**PROMPT, **changes, "stream": True}) as response:
            assert response.status == 200, response.read()
            for line in response:
                if line.startswith(b"data: ") and b"[DONE]" not in line:
                    yield json.loads(line[6:])["choices"][0]["text"]

    def signal_and_time(self, number: int) -> float:
        """Signal the supervisor; returns the seconds until its last process is gone."""
        processes = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(200)
        while any(map(is_alive, processes)):
            assert time.monotonic() < began + 200
            time.sleep(0.001)
        return time.monotonic() - began

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._errors.close()
