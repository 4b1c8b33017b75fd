"""The supervisor with small real children: which are replaced, when it gives up, how it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from paged_serve.frontend.listen import open_http_socket
from paged_serve.frontend.supervision.flight_recorder.bundle import Bundle, bundles_in, dump_folder, read_bundle
from paged_serve.frontend.supervision.processes.child import ChildState
from paged_serve.frontend.supervision.processes.hang_detector import HALTED_S
from paged_serve.frontend.supervision.signal_pipe import REPORT_SIGNAL
from paged_serve.frontend.supervision.supervisor import Supervisor
from paged_serve.protocol.errors import ConfigError, EngineDead
from paged_serve.protocol.messages.config import Config, ServerConfig

from .running_supervisor import CONFIG, MODULES, Running, supervisors


def is_alive(process: psutil.Process) -> bool:
    """A zombie is dead; its new parent has not reaped it yet."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


start = pytest.fixture(supervisors)


def test_the_supervisor_is_ready_when_all_children_are(start):
    running = start()
    assert running.ready.wait(60)
    assert running.facts["engine-core"] == running.facts["frontend"] == "epoch 0"
    assert set(running.supervisor.pids) == {"engine-core", "worker 0", "worker 1", "frontend 0"}


def test_a_killed_worker_ends_its_group_and_not_the_core(start):
    running = start()
    assert running.ready.wait(60)
    before = running.supervisor.pids
    os.kill(before["worker 1"], signal.SIGKILL)
    after = running.pids_after_change(before, {"worker 0", "worker 1"})
    assert (after["engine-core"], after["frontend 0"]) == (before["engine-core"], before["frontend 0"])
    # The last two are reported by the core: it received the message.
    running.wait_for_facts(worker="epoch 1", workers="epoch 1", from_outside="True")


@pytest.mark.parametrize("behaviour", ["faults", "crash", "exit"])
def test_a_worker_crash_may_be_attributed_to_a_request(start, behaviour):
    running = start(worker=[behaviour, "obey"])
    assert running.ready.wait(60)
    running.wait_for_facts(worker="epoch 1", workers="epoch 1", from_outside="False")


def test_a_killed_core_is_replaced_together_with_the_workers(start):
    running = start()
    assert running.ready.wait(60)
    before = running.supervisor.pids
    os.kill(before["engine-core"], signal.SIGKILL)
    after = running.pids_after_change(before, {"engine-core", "worker 0", "worker 1"})
    assert after["frontend 0"] == before["frontend 0"]
    running.wait_for_facts(worker="epoch 1", engine_core="epoch 1")


def test_a_core_that_had_not_started_is_sent_the_new_group_later(start):
    running = start(engine_core="slow", worker=["exit", "obey"])
    assert running.ready.wait(60)
    running.wait_for_facts(worker="epoch 1", workers="epoch 1")


def test_a_killed_frontend_is_replaced_alone_and_listens_on_the_same_socket(start):
    running = start()
    assert running.ready.wait(60)
    before = running.supervisor.pids
    os.kill(before["frontend 0"], signal.SIGKILL)
    after = running.pids_after_change(before, {"frontend 0"})
    assert {name: after[name] == before[name] for name in before} == {
        "engine-core": True,
        "worker 0": True,
        "worker 1": True,
        "frontend 0": False,
    }
    sockets = os.readlink(f"/proc/{after['frontend 0']}/fd/{running.supervisor._http_socket.fileno()}")
    assert sockets == os.readlink(f"/proc/self/fd/{running.supervisor._http_socket.fileno()}")


@pytest.mark.parametrize("name", ["worker 0", "engine-core", "frontend 0"])
def test_a_halted_process_is_noticed_and_replaced(start, name):
    running = start()
    assert running.ready.wait(60)
    before = running.supervisor.pids
    os.kill(before[name], signal.SIGSTOP)
    began = time.monotonic()
    running.pids_after_change(before, {name})
    assert HALTED_S - 0.5 < time.monotonic() - began < HALTED_S + 60


def test_a_core_with_a_stuck_loop_is_replaced(start, monkeypatch):
    monkeypatch.setattr("paged_serve.frontend.supervision.processes.hang_detector.HANG_S", 1.6)
    running = start(engine_core=["silent", "obey"])
    assert running.ready.wait(60)
    running.pids_after_change(running.supervisor.pids, {"engine-core", "worker 0", "worker 1"})


@pytest.fixture
def start_with_standbys(start, monkeypatch):
    """Standby workers are started as soon as the service is ready."""
    monkeypatch.setitem(MODULES, "standby", "fake_standby")
    monkeypatch.setattr("paged_serve.frontend.supervision.processes.standby_workers.SETTLED_S", 0.0)
    return start


def warm_standbys(running: Running) -> dict[str, int]:
    """The process ids, once there is a warm standby worker for each rank."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        standbys = [child for child in list(running.supervisor._processes.living.values()) if child.role == "standby"]
        if len(standbys) == 2 and all(standby.state is ChildState.READY for standby in standbys):
            return running.supervisor.pids
        time.sleep(0.01)
    raise AssertionError("there are no standby workers")


def test_warm_standbys_become_the_workers_and_new_standbys_start(start_with_standbys):
    running = start_with_standbys()
    before = warm_standbys(running)
    os.kill(before["worker 1"], signal.SIGKILL)
    after = running.pids_after_change(before, {"worker 0", "worker 1"})
    assert (after["worker 0"], after["worker 1"]) == (before["standby 0"], before["standby 1"])
    running.wait_for_facts(worker="epoch 1, once a standby worker", workers="epoch 1")
    assert warm_standbys(running).items() >= {(n, after[n]) for n in ("worker 0", "worker 1", "engine-core")}


def test_a_standby_that_dies_is_replaced_and_no_other_is(start_with_standbys):
    running = start_with_standbys()
    before = warm_standbys(running)
    os.kill(before["standby 0"], signal.SIGKILL)
    running.pids_after_change(before, {"standby 0"})
    after = warm_standbys(running)
    assert {name for name in before if before[name] != after[name]} == {"standby 0"}


def test_a_halted_standby_is_replaced_and_no_other_is(start_with_standbys):
    running = start_with_standbys()
    before = warm_standbys(running)
    os.kill(before["standby 1"], signal.SIGSTOP)
    running.pids_after_change(before, {"standby 1"})
    after = warm_standbys(running)
    assert {name for name in before if before[name] != after[name]} == {"standby 1"}


@pytest.mark.parametrize("behaviour", ["crash", "refuse", "exit"])
def test_standbys_that_never_get_warm_are_abandoned_and_the_service_continues(start_with_standbys, behaviour, caplog):
    running = start_with_standbys(standby=behaviour)
    assert running.ready.wait(60)
    before = running.supervisor.pids
    deadline = time.monotonic() + 60
    while "no standby workers from here on" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    after = running.supervisor.pids
    assert {name: after[name] for name in before if "standby" not in name}.items() <= before.items()
    os.kill(after["worker 0"], signal.SIGKILL)
    running.pids_after_change(after, {"worker 0", "worker 1"})


def bundles(folder: Path, count: int) -> list[Bundle]:
    """The bundles, once there are `count`."""
    deadline = time.monotonic() + 60
    while len(paths := bundles_in(dump_folder(str(folder)))) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return [read_bundle(path) for path in paths]


def reporting(folder: Path) -> Config:
    return msgspec.structs.replace(CONFIG, server=ServerConfig(port=0, drain_timeout_s=0.5, dump_dir=str(folder)))


def test_a_lost_process_leaves_a_report_of_all_processes(start, tmp_path):
    running = start(reporting(tmp_path))
    assert running.ready.wait(60)
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


def test_a_halted_process_is_reported_before_it_is_killed(start, tmp_path):
    running = start(reporting(tmp_path))
    assert running.ready.wait(60)
    os.kill(running.supervisor.pids["worker 0"], signal.SIGSTOP)
    [report] = bundles(tmp_path, 1)
    [halted] = [process for process in report.processes if process.name == "worker 0"]
    assert halted.threads[0].state == "T"


@pytest.mark.parametrize("name", ["worker 1", "engine-core", "frontend 0"])
def test_sigusr1_to_any_process_makes_a_report_of_all_processes(start, tmp_path, name):
    running = start(reporting(tmp_path))
    assert running.ready.wait(60)
    before = running.supervisor.pids
    os.kill(before[name], REPORT_SIGNAL)
    [report] = bundles(tmp_path, 1)
    assert report.reason == f"asked for by SIGUSR1 to {name}"
    assert len(report.processes) == 4
    assert running.supervisor.pids == before


def test_consecutive_losses_make_one_report_and_a_request_makes_another(start, tmp_path, monkeypatch):
    monkeypatch.setattr("paged_serve.frontend.supervision.flight_recorder.recorder.QUIET_S", 1e9)
    running = start(reporting(tmp_path))
    assert running.ready.wait(60)
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
    assert len(second.processes) == 4


def test_without_a_folder_no_reports_are_written(start, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    running = start(reporting(Path("none")))
    assert running.ready.wait(60)
    before = running.supervisor.pids
    os.kill(before["worker 0"], signal.SIGKILL)
    running.pids_after_change(before, {"worker 0"})
    running.wait_for_facts(worker="epoch 1")
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_counts_even_when_the_core_reports_the_loss_first(start):
    running = start(engine_core="loses workers", worker="refuse late")
    assert running.ended() == 2
    assert "no such device" in running.supervisor.reason


def test_a_loss_that_the_core_reports_replaces_the_group(start):
    running = start(engine_core="loses workers")
    assert running.ready.wait(60)
    running.wait_for_facts(worker="epoch 1", workers="epoch 1")


def test_a_refused_start_ends_everything_with_the_childs_message(start):
    running = start(engine_core="never ready", worker="refuse")
    assert running.ended() == 2
    assert running.supervisor.reason == "this machine has no such device; try --device cpu"
    assert not running.ready.is_set()


def test_repeated_crashes_end_the_service_and_name_the_first(start):
    running = start(worker="crash")
    assert running.ended() == 1
    assert running.supervisor.reason.startswith("gave up after 5 restarts in 60 s: worker ")
    assert "RuntimeError: out of luck" in running.supervisor.reason


def test_the_configuration_sets_the_number_of_tolerated_losses(start):
    server = ServerConfig(port=0, max_restarts=1, restart_window_s=3600.0)
    running = start(msgspec.structs.replace(CONFIG, server=server))
    assert running.ready.wait(60)
    before = running.supervisor.pids
    os.kill(before["worker 0"], signal.SIGKILL)
    after = running.pids_after_change(before, {"worker 0", "worker 1"})
    os.kill(after["worker 0"], signal.SIGKILL)
    assert running.ended() == 1
    assert running.supervisor.reason.startswith("gave up after 1 restarts in 3600 s: worker ")


def test_a_death_without_a_message_is_named_by_its_exit_code(start):
    running = start(frontend="exit")
    assert running.ended() == 1
    assert "frontend 0 (pid " in running.supervisor.reason
    assert "ended with exit code 7" in running.supervisor.reason


def test_wait_ready_raises_the_childs_refusal_and_leaves_nothing(start, monkeypatch):
    monkeypatch.setenv("FAKE_CHILDREN", '{"engine-core": "refuse"}')
    supervisor = Supervisor(CONFIG, modules=MODULES)
    supervisor.start()
    with pytest.raises(ConfigError, match="no such device"):
        supervisor.wait_ready(60)
    assert not os.path.exists(supervisor.run_dir)


def test_wait_ready_times_out(start, monkeypatch):
    monkeypatch.setenv("FAKE_CHILDREN", '{"worker": "never ready", "engine-core": "never ready"}')
    supervisor = Supervisor(CONFIG, modules=MODULES)
    supervisor.start()
    with pytest.raises(EngineDead, match="not ready after 1 s"):
        supervisor.wait_ready(0.6)


def test_progress_is_summed_over_all_processes(start):
    running = start(engine_core="never ready")
    deadline = time.monotonic() + 60
    while len(running.progress) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert running.progress == [("loading", n, 2 * n) for n in (1, 2, 3, 4)]


def test_a_start_that_fails_early_releases_its_socket(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("long" * 20)))
    Path(tmp_path / ("long" * 20)).mkdir()
    http_socket = open_http_socket(CONFIG.server)
    with pytest.raises(ConfigError, match="shorter path"):
        Supervisor(CONFIG, http_socket, modules=MODULES).start()
    assert http_socket.fileno() == -1


def test_a_drain_ends_when_the_frontends_report_its_end(start):
    running = start(msgspec.structs.replace(CONFIG, server=ServerConfig(port=0, drain_timeout_s=30.0)))
    assert running.ready.wait(60)
    began = time.monotonic()
    running.supervisor.drain()
    assert running.ended() == 0
    assert time.monotonic() - began < 30


def test_a_drain_that_takes_too_long_is_cut(start):
    running = start(frontend="never drained")
    assert running.ready.wait(60)
    began = time.monotonic()
    running.supervisor.drain()
    assert running.ended() == 0
    assert 0.5 <= time.monotonic() - began < 30


def test_a_worker_that_dies_during_the_drain_is_replaced_but_a_frontend_is_not(start):
    running = start(msgspec.structs.replace(CONFIG, server=ServerConfig(port=0)), frontend="never drained")
    assert running.ready.wait(60)
    before = running.supervisor.pids
    running.supervisor.drain()
    os.kill(before["worker 0"], signal.SIGKILL)
    after = running.pids_after_change(before, {"worker 0", "worker 1"})
    os.kill(after["frontend 0"], signal.SIGKILL)
    assert running.ended() == 0


def test_processes_started_by_a_child_end_with_it(start):
    running = start(frontend="has a child")
    assert running.ready.wait(60)
    [grandchild] = psutil.Process(running.supervisor.pids["frontend 0"]).children()
    running.supervisor.stop()
    assert running.ended() == 0
    deadline = time.monotonic() + 60
    while is_alive(grandchild):
        assert time.monotonic() < deadline


def test_an_unknown_peer_with_the_secret_is_refused(start):
    running = start()
    assert running.ready.wait(60)
    before = running.supervisor.pids
    code = (
        "import os, sys; from paged_serve.protocol.process.lifecycle import ChildProcess; r, w = os.pipe();"
        "options = ['--run-dir', sys.argv[1], '--index', '0', '--epoch', '0', '--lifeline-fd', str(r)];"
        "ChildProcess.start('worker', options)"
    )
    unknown = subprocess.run(
        [sys.executable, "-c", code, running.supervisor.run_dir],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
    )
    assert "no worker 0 of epoch 0 with pid" in unknown.stderr
    assert running.supervisor.pids == before
