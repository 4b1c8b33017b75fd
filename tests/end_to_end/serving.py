"""A real server on this machine: started by the command line, stopped by SIGTERM."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from paged_serve.frontend.supervision.supervisor import Supervisor

ROOT = Path(__file__).parent.parent.parent
START_TIMEOUT_S = 200.0
STOP_TIMEOUT_S = 200.0


class Server:
    """`paged-serve` with the given options; they may name another model than the demo model."""

    def __init__(self, *options: str):
        self.port = 0
        self.log = tempfile.TemporaryFile("a+")  # noqa: SIM115 (read while the process appends)
        command = [sys.executable, "-m", "paged_serve", *options, "--port", "0"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=self.log, stderr=subprocess.STDOUT)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def output(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def get(self, path: str) -> tuple[int, str]:
        """(status, body); the status is 0 without an answer."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metrics(self) -> str:
        """The metrics, from the operator's socket."""
        connection = http.client.HTTPConnection("localhost", timeout=60)
        connection.sock = socket.socket(socket.AF_UNIX)
        with contextlib.closing(connection):
            connection.sock.connect(f"{self.run_dir}/admin-0.sock")
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()

    def is_frontend_up(self, index: int) -> bool:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as link:
            return link.connect_ex(f"{self.run_dir}/admin-{index}.sock") == 0

    def post(self, path: str, body: dict[str, Any] | bytes) -> tuple[int, dict[str, Any]]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def wait_ready(self) -> float:
        """Wait for /ready; returns the seconds. Raises with the server's output if it ends before."""
        started = time.monotonic()
        while not self._find_port() or self.get("/ready")[0] != 200:
            if self.process.poll() is not None or time.monotonic() - started > START_TIMEOUT_S:
                self.kill()
                raise AssertionError(f"the server did not become ready:\n{self.output()}")
            time.sleep(0.05)
        return time.monotonic() - started

    def _find_port(self) -> bool:
        if not self.port and (found := re.search(r"http +http://127.0.0.1:(\d+)", self.output())):
            self.port = int(found[1])
        return self.port > 0

    @property
    def run_dir(self) -> str:
        """The run's private directory, from the children's command lines."""
        for child in self.children():
            found = re.search(r"--run-dir[ =](\S+)", " ".join(_command_line(child)))
            if found:
                return found.group(1)
        raise AssertionError("no child names a run directory")

    def children(self, module: str = "") -> list[psutil.Process]:
        """The children that run `module`; a standby worker has no module until it is promoted."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in children if not is_standby(child) and module in " ".join(_command_line(child))]

    def stop(self) -> int:
        """Send SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)


def is_standby(process: psutil.Process) -> bool:
    """Whether the process is a standby worker; once promoted it has a worker's name."""
    try:
        return "paged_serve.workers.process.standby" in process.cmdline() and not process.name().startswith("worker")
    except psutil.NoSuchProcess:
        return False


def _command_line(process: psutil.Process) -> list[str]:
    """The command line of a process; empty if it has just ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


@contextmanager
def serving(*options: str) -> Iterator[Server]:
    """A server without standby workers: chaos tests cover them, and each needs two seconds of a core to start."""
    server = Server("--no-standby-workers", *options)
    try:
        server.wait_ready()
        yield server
    finally:
        server.kill()
        server.log.close()


@contextmanager
def supervised(supervisor: Supervisor) -> Iterator[Supervisor]:
    """The supervisor, ready, while a thread of this process runs it."""
    supervisor.start()
    supervisor.wait_ready(START_TIMEOUT_S)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        yield supervisor
    finally:
        supervisor.stop()
        thread.join(STOP_TIMEOUT_S)
