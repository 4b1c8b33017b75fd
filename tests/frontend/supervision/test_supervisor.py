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
from paged_serve.frontend.supervision.processes.child import ChildState
from paged_serve.frontend.supervision.processes.hang_detector import HALTED_S
from paged_serve.frontend.supervision.shutdown import Phase
from paged_serve.frontend.supervision.supervisor import Supervisor
from paged_serve.protocol.errors import ConfigError, EngineDead
from paged_serve.protocol.messages.config import ServerConfig

from .running_supervisor import CONFIG, MODULES, TWO_RANKS, WITHIN_S, supervisors


def is_alive(process: psutil.Process) -> bool:
    """A zombie is dead; its new parent has not reaped it yet."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


start = pytest.fixture(supervisors)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    server = ServerConfig(port=0, drain_timeout_s=0.5, max_restarts=100)
    with pytest.MonkeyPatch.context() as patch:
        for start in supervisors(patch, tmp_path_factory):
            yield start(msgspec.structs.replace(TWO_RANKS, server=server))


@pytest.fixture
def running(two_ranks):
    """A supervisor of two ranks that may lose any of its children, all of which are ready."""
    two_ranks.wait_until_all_are_ready()
    return two_ranks


def test_the_supervisor_is_ready_when_all_children_are(running):
    assert running.facts["engine-core"] == running.facts["frontend"] == "epoch 0"
    assert set(running.supervisor.pids) == {"engine-core", "worker 0", "worker 1", "frontend 0"}


def test_a_killed_worker_ends_its_group_and_not_the_core(running):
    before, epoch = running.supervisor.pids, running.next_epoch()
    os.kill(before["worker 1"], signal.SIGKILL)
    after = running.pids_after_change(before, {"worker 0", "worker 1"})
    assert (after["engine-core"], after["frontend 0"]) == (before["engine-core"], before["frontend 0"])
    # The last two are reported by the core: it received the message.
    running.wait_for_facts(worker=epoch, workers=epoch, from_outside="True")


@pytest.mark.parametrize("behaviour", ["faults", "crash", pytest.param("exit", marks=pytest.mark.nightly)])
def test_a_worker_crash_may_be_attributed_to_a_request(start, behaviour):
    running = start(worker=[behaviour, "obey"])
    assert running.ready.wait(WITHIN_S)
    running.wait_for_facts(worker="epoch 1", workers="epoch 1", from_outside="False")


def test_a_killed_core_is_replaced_together_with_the_workers(running):
    before, epoch = running.supervisor.pids, running.next_epoch()
    os.kill(before["engine-core"], signal.SIGKILL)
    after = running.pids_after_change(before, {"engine-core", "worker 0", "worker 1"})
    assert after["frontend 0"] == before["frontend 0"]
    running.wait_for_facts(worker=epoch, engine_core=epoch)


def test_a_core_that_had_not_started_is_sent_the_new_group_later(start):
    running = start(engine_core="slow", worker=["exit", "obey"])
    assert running.ready.wait(WITHIN_S)
    running.wait_for_facts(worker="epoch 1", workers="epoch 1")


def test_a_killed_frontend_is_replaced_alone_and_listens_on_the_same_socket(running):
    before = running.supervisor.pids
    os.kill(before["frontend 0"], signal.SIGKILL)
    after = running.pids_after_change(before, {"frontend 0"})
    assert {name for name in before if after[name] != before[name]} == {"frontend 0"}
    sockets = os.readlink(f"/proc/{after['frontend 0']}/fd/{running.supervisor._http_socket.fileno()}")
    assert sockets == os.readlink(f"/proc/self/fd/{running.supervisor._http_socket.fileno()}")


def test_a_frontend_is_told_whether_its_predecessor_has_failed_by_itself(start):
    running = start(frontend=["faults", "obey"])
    running.wait_for_facts(frontend="epoch 1", frontend_predecessor_failed="True")
    os.kill(running.supervisor.pids["frontend 0"], signal.SIGKILL)
    running.wait_for_facts(frontend="epoch 2", frontend_predecessor_failed="False")


@pytest.mark.parametrize("name", ["worker 0", "engine-core", "frontend 0"])
def test_a_halted_process_is_noticed_and_replaced(running, name):
    before = running.supervisor.pids
    os.kill(before[name], signal.SIGSTOP)
    began = time.monotonic()
    running.pids_after_change(before, {name})
    assert HALTED_S - 0.5 < time.monotonic() - began < HALTED_S + WITHIN_S


def test_a_core_with_a_stuck_loop_is_replaced(start, monkeypatch):
    monkeypatch.setattr("paged_serve.frontend.supervision.processes.hang_detector.HANG_S", 1.6)
    running = start(engine_core=["silent", "obey"])
    assert running.ready.wait(WITHIN_S)
    running.pids_after_change(running.supervisor.pids, {"engine-core", "worker 0"})


def test_a_start_whose_worker_hangs_while_it_loads_ends_and_names_the_option(start):
    limits = msgspec.structs.replace(CONFIG.parallel, load_timeout_s=1.0)
    running = start(msgspec.structs.replace(CONFIG, parallel=limits), worker="never ready")
    assert running.ended() == 1
    assert "loading has made no progress for 1 s; check the disk" in running.supervisor.reason
    assert "--load-timeout (1)" in running.supervisor.reason


def test_a_replacement_that_hangs_while_it_loads_is_replaced_too(start):
    server = msgspec.structs.replace(CONFIG.server, max_restarts=100)  # another one may seem to hang on a busy machine
    running = start(msgspec.structs.replace(CONFIG, server=server), worker=["obey", "never ready", "obey"])
    running.wait_until_all_are_ready()
    before = running.supervisor.pids
    running.supervisor._lost_children._silence._load_timeout_s = 1.0
    os.kill(before["worker 0"], signal.SIGKILL)
    hanging = running.pids_after_change(before, {"worker 0"})
    after = running.pids_after_change(hanging, {"worker 0"})
    running.wait_until_all_are_ready()
    assert after["engine-core"] == before["engine-core"]


def test_a_refusal_counts_even_when_the_core_reports_the_loss_first(start):
    running = start(engine_core="loses workers", worker="refuse late")
    assert running.ended() == 2
    assert "no such device" in running.supervisor.reason


def test_a_loss_that_the_core_reports_replaces_the_group(start):
    running = start(engine_core="loses workers")
    assert running.ready.wait(WITHIN_S)
    running.wait_for_facts(worker="epoch 1", workers="epoch 1")


def test_a_refused_start_ends_everything_with_the_childs_message(start):
    running = start(engine_core="never ready", worker="refuse")
    assert running.ended() == 2
    assert running.supervisor.reason == "this machine has no such device; try --device cpu"
    assert not running.ready.is_set()


def test_repeated_crashes_end_the_service_and_name_the_first(start):
    running = start(worker="crash")
    assert running.ended() == 1
    assert running.supervisor.reason.startswith("gave up after 5 restarts in 3600 s: worker ")
    assert "RuntimeError: out of luck" in running.supervisor.reason


def test_the_configuration_sets_the_number_of_tolerated_losses(start):
    server = ServerConfig(port=0, max_restarts=1, restart_window_s=3600.0)
    running = start(msgspec.structs.replace(CONFIG, server=server))
    assert running.ready.wait(WITHIN_S)
    before = running.supervisor.pids
    os.kill(before["worker 0"], signal.SIGKILL)
    after = running.pids_after_change(before, {"worker 0"})
    os.kill(after["worker 0"], signal.SIGKILL)
    assert running.ended() == 1
    assert running.supervisor.reason.startswith("gave up after 1 restarts in 3600 s: worker ")


def test_a_death_without_a_message_is_named_by_its_exit_code(start):
    once = msgspec.structs.replace(CONFIG, server=ServerConfig(port=0, max_restarts=0))
    running = start(once, frontend="exit")
    assert running.ended() == 1
    assert "frontend 0 (pid " in running.supervisor.reason
    assert "ended with exit code 7" in running.supervisor.reason


def test_wait_ready_raises_the_childs_refusal_and_leaves_nothing(start, monkeypatch):
    monkeypatch.setenv("FAKE_CHILDREN", '{"engine-core": "refuse"}')
    supervisor = Supervisor(CONFIG, modules=MODULES)
    supervisor.start()
    with pytest.raises(ConfigError, match="no such device"):
        supervisor.wait_ready(WITHIN_S)
    assert not os.path.exists(supervisor.run_dir)


def test_wait_ready_times_out(start, monkeypatch):
    monkeypatch.setenv("FAKE_CHILDREN", '{"worker": "never ready", "engine-core": "never ready"}')
    supervisor = Supervisor(CONFIG, modules=MODULES)
    supervisor.start()
    with pytest.raises(EngineDead, match="not ready after 1 s"):
        supervisor.wait_ready(0.6)


def test_progress_is_summed_over_all_processes(start):
    running = start(engine_core="never ready")
    deadline = time.monotonic() + WITHIN_S
    while len(running.progress) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert running.progress == [("loading", n, 2 * n) for n in (1, 2, 3)]


def test_a_start_that_fails_early_releases_its_socket(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("long" * 20)))
    Path(tmp_path / ("long" * 20)).mkdir()
    http_socket = open_http_socket(CONFIG.server)
    with pytest.raises(ConfigError, match="shorter path"):
        Supervisor(CONFIG, http_socket, modules=MODULES).start()
    assert http_socket.fileno() == -1


def test_a_folder_of_stored_responses_belongs_to_one_server_at_a_time(start, tmp_path):
    config = msgspec.structs.replace(
        CONFIG, server=msgspec.structs.replace(CONFIG.server, store_responses=str(tmp_path / "stored"))
    )
    running = start(config)
    assert running.ready.wait(WITHIN_S)
    http_socket = open_http_socket(config.server)
    with pytest.raises(ConfigError, match=r"--store-responses .*stored: another server uses this folder"):
        Supervisor(config, http_socket, modules=MODULES).start()
    assert http_socket.fileno() == -1
    running.supervisor.stop()
    assert running.ended() == 0
    next_one = start(config)
    assert next_one.ready.wait(WITHIN_S)


@pytest.mark.parametrize(
    ("layer", "fields", "named"),
    [
        ("model", {"model": "/models/caf\udce9"}, r"model=.*caf.*not UTF-8"),
        ("model", {"served_model_names": ("demo", "caf\udce9")}, "served_model_names=.*not UTF-8"),
        ("server", {"dump_dir": "/caf\udce9"}, "dump_dir=.*not UTF-8"),
        ("kv_tier", {"dir": "/tier\0"}, r"dir='/tier\\x00': has a null byte"),
    ],
)
def test_a_text_that_no_message_can_carry_is_refused_by_name(layer, fields, named):
    changed = msgspec.structs.replace(getattr(CONFIG, layer), **fields)
    http_socket = open_http_socket(CONFIG.server)
    with pytest.raises(ConfigError, match=named):
        Supervisor(msgspec.structs.replace(CONFIG, **{layer: changed}), http_socket, modules=MODULES).start()
    assert http_socket.fileno() == -1


def test_a_drain_ends_when_the_frontends_report_its_end(start):
    running = start(msgspec.structs.replace(CONFIG, server=ServerConfig(port=0, drain_timeout_s=600.0)))
    assert running.ready.wait(WITHIN_S)
    running.supervisor.drain()
    assert running.ended() == 0


def test_a_drain_that_takes_too_long_is_cut(start):
    running = start(frontend="never drained")
    assert running.ready.wait(WITHIN_S)
    began = time.monotonic()
    running.supervisor.drain()
    assert running.ended() == 0
    assert time.monotonic() - began >= 0.5


def test_a_worker_that_dies_during_the_drain_is_replaced_but_a_frontend_is_not(start):
    running = start(msgspec.structs.replace(CONFIG, server=ServerConfig(port=0)), frontend="never drained")
    assert running.ready.wait(WITHIN_S)
    before = running.supervisor.pids
    running.supervisor.drain()
    os.kill(before["worker 0"], signal.SIGKILL)
    after = running.pids_after_change(before, {"worker 0"})
    os.kill(after["frontend 0"], signal.SIGKILL)
    assert running.ended() == 0


def test_a_frontend_that_starts_while_the_core_is_drained_is_drained_like_the_others(start):
    running = start(
        msgspec.structs.replace(CONFIG, server=ServerConfig(port=0)), frontend="slow", engine_core="never drained"
    )
    assert running.ready.wait(WITHIN_S)
    before = running.supervisor.pids
    os.kill(before["frontend 0"], signal.SIGKILL)
    running.pids_after_change(before, {"frontend 0"})
    running.supervisor.drain()
    running.wait_for_phase(Phase.DRAINING_ENGINE)
    deadline = time.monotonic() + WITHIN_S
    [frontend] = running.supervisor._processes.of_role("frontend")
    while frontend.state is not ChildState.DRAINED:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_processes_started_by_a_child_end_with_it(start):
    running = start(frontend="has a child")
    assert running.ready.wait(WITHIN_S)
    [grandchild] = psutil.Process(running.supervisor.pids["frontend 0"]).children()
    running.supervisor.stop()
    assert running.ended() == 0
    deadline = time.monotonic() + WITHIN_S
    while is_alive(grandchild):
        assert time.monotonic() < deadline


def test_an_unknown_peer_with_the_secret_is_refused(running):
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
