"""When a supervisor writes a report, and which processes it holds."""

import os
import signal
import time
from pathlib import Path

import msgspec
import pytest

from paged_serve.frontend.supervision.flight_recorder.bundle import Bundle, bundles_in, dump_folder, read_bundle
from paged_serve.frontend.supervision.signal_pipe import REPORT_SIGNAL
from paged_serve.protocol.messages.config import Config, ServerConfig

from .running_supervisor import CONFIG, TWO_RANKS, WITHIN_S, supervisors

start = pytest.fixture(supervisors)


def bundles(folder: Path, count: int) -> list[Bundle]:
    """The bundles, once there are `count`."""
    deadline = time.monotonic() + WITHIN_S
    while len(paths := bundles_in(dump_folder(str(folder)))) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return [read_bundle(path) for path in paths]


def reporting(folder: Path, config: Config = CONFIG) -> Config:
    return msgspec.structs.replace(config, server=ServerConfig(port=0, drain_timeout_s=0.5, dump_dir=str(folder)))


def test_a_lost_process_leaves_a_report_of_all_processes(start, tmp_path):
    running = start(reporting(tmp_path, TWO_RANKS))
    assert running.ready.wait(WITHIN_S)
    before = running.supervisor.pids
    os.kill(before["worker 1"], signal.SIGKILL)
    [report] = bundles(tmp_path, 1)
    assert f"worker 1 (pid {before['worker 1']}) was killed by SIGKILL" in report.reason
    processes = {process.name: process for process in report.processes}
    assert {name: processes[name].pid for name in before} == before
    assert processes["worker 1"].state == "dead"
    assert "in run_child" in processes["engine-core"].stacks
    assert any("ready engine-core epoch=0" in event for event in report.events)
    assert msgspec.json.decode(report.core_state) == {"audit": "", "blocks": {}, "running": []}


def test_a_supervisor_without_a_folder_for_reports_writes_below_xdg_state_home(start, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    running = start(CONFIG)
    assert running.ready.wait(WITHIN_S)
    os.kill(running.supervisor.pids["worker 0"], signal.SIGKILL)
    [report] = bundles(tmp_path, 1)
    assert "was killed by SIGKILL" in report.reason


def test_a_halted_process_is_reported_before_it_is_killed(start, tmp_path):
    running = start(reporting(tmp_path))
    assert running.ready.wait(WITHIN_S)
    os.kill(running.supervisor.pids["worker 0"], signal.SIGSTOP)
    [report] = bundles(tmp_path, 1)
    [halted] = [process for process in report.processes if process.name == "worker 0"]
    assert halted.threads[0].state == "T"


@pytest.mark.parametrize("name", ["worker 0", "engine-core", "frontend 0"])
def test_sigusr1_to_any_process_makes_a_report_of_all_processes(start, tmp_path, name):
    running = start(reporting(tmp_path))
    assert running.ready.wait(WITHIN_S)
    before = running.supervisor.pids
    os.kill(before[name], REPORT_SIGNAL)
    [report] = bundles(tmp_path, 1)
    assert report.reason == f"asked for by SIGUSR1 to {name}"
    assert len(report.processes) == 3
    assert running.supervisor.pids == before


def test_consecutive_losses_make_one_report_and_a_request_makes_another(start, tmp_path, monkeypatch):
    monkeypatch.setattr("paged_serve.frontend.supervision.flight_recorder.recorder.QUIET_S", 1e9)
    running = start(reporting(tmp_path))
    assert running.ready.wait(WITHIN_S)
    before = running.supervisor.pids
    os.kill(before["worker 0"], signal.SIGKILL)
    after = running.pids_after_change(before, {"worker 0"})
    running.wait_for_facts(worker="epoch 1", workers="epoch 1")
    os.kill(after["worker 0"], signal.SIGKILL)
    running.pids_after_change(after, {"worker 0"})
    running.wait_for_facts(worker="epoch 2", workers="epoch 2")
    running.supervisor._signal_pipe.ask(REPORT_SIGNAL)
    first, second = bundles(tmp_path, 2)
    assert "was killed by SIGKILL" in first.reason
    assert second.reason == "asked for by SIGUSR1"
    assert len(second.processes) == 3


def test_without_a_folder_no_reports_are_written(start, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    running = start(reporting(Path("none")))
    assert running.ready.wait(WITHIN_S)
    before = running.supervisor.pids
    os.kill(before["worker 0"], signal.SIGKILL)
    running.pids_after_change(before, {"worker 0"})
    running.wait_for_facts(worker="epoch 1")
    assert list(tmp_path.iterdir()) == []
