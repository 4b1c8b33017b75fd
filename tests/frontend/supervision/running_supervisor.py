"""A supervisor in a thread, with small children that obey, or misbehave on demand."""

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil

from paged_serve.frontend.listen import open_http_socket
from paged_serve.frontend.supervision.processes.child import ChildState
from paged_serve.frontend.supervision.shutdown import Phase
from paged_serve.frontend.supervision.supervisor import Supervisor
from paged_serve.protocol.messages.config import Config, ParallelConfig, ServerConfig

FAKES = Path(__file__).parent / "fakes"
MODULES = {"engine-core": "fake_engine_core", "worker": "fake_worker", "frontend": "fake_frontend"}
CONFIG = Config(server=ServerConfig(port=0, drain_timeout_s=0.5, restart_window_s=3600.0))
WITHIN_S = 200.0  # a guard against hangs: a busy machine takes its time for each process
TWO_RANKS = msgspec.structs.replace(CONFIG, parallel=ParallelConfig(tensor_parallel_size=2))


class Running:
    """A supervisor that runs in a thread."""

    def __init__(self, config: Config = CONFIG):
        self.supervisor = Supervisor(config, open_http_socket(config.server), modules=MODULES)
        self.supervisor.start()
        self.ready = threading.Event()
        self.facts: dict[str, str] = {}
        self.progress: list[tuple[str, int, int]] = []
        self.thread = threading.Thread(
            target=self.supervisor.run,
            kwargs={"on_ready": self._note, "on_progress": lambda *progress: self.progress.append(progress)},
        )
        self.thread.start()

    def _note(self, facts: dict[str, str]) -> None:
        self.facts = facts
        self.ready.set()

    def wait_until_all_are_ready(self) -> None:
        assert self.ready.wait(WITHIN_S)
        deadline = time.monotonic() + WITHIN_S
        while any(child.state is not ChildState.READY for child in [*self.supervisor._processes.living.values()]):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def next_epoch(self) -> str:
        return f"epoch {self.supervisor._recovery.engine_epoch + 1}"

    def pids_after_change(self, before: dict[str, int], names: set[str]) -> dict[str, int]:
        """The process ids, once all of `names` have new ones."""
        deadline = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline:
            pids = self.supervisor.pids
            if names <= pids.keys() and all(pids[name] != before[name] for name in names):
                return pids
            time.sleep(0.01)
        raise AssertionError(f"{names} were not replaced")

    def wait_for_facts(self, **expected: str) -> None:
        """Wait for facts in the children's latest Ready."""
        deadline = time.monotonic() + WITHIN_S
        wanted = {name.replace("_", "-"): value for name, value in expected.items()}
        while not wanted.items() <= (facts := self.supervisor.facts()).items():
            assert time.monotonic() < deadline, facts
            time.sleep(0.01)

    def wait_for_phase(self, phase: Phase) -> None:
        deadline = time.monotonic() + WITHIN_S
        while self.supervisor._shutdown.phase is not phase:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def ended(self) -> int:
        self.thread.join(WITHIN_S)
        assert not self.thread.is_alive()
        return self.supervisor.exit_code


def supervisors(monkeypatch, tmp_path_factory) -> Iterator:
    """For a fixture: a function that starts a supervisor; `behaviours`: of its children, by role."""
    monkeypatch.syspath_prepend(str(FAKES))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("t")))  # short, for the paths of sockets
    started: list[Running] = []
    before = set(psutil.Process().children(recursive=True))

    def start(config: Config = CONFIG, **behaviours) -> Running:
        monkeypatch.setenv("FAKE_CHILDREN", json.dumps({k.replace("_", "-"): v for k, v in behaviours.items()}))
        started.append(Running(config))
        return started[-1]

    yield start
    for running in started:
        running.supervisor.stop()
        running.ended()
        assert not os.path.exists(running.supervisor.run_dir)
    assert set(psutil.Process().children(recursive=True)) <= before
