"""Children with real parents: none outlives the supervisor, and each reports why it ends."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from paged_serve.protocol.messages import control
from paged_serve.protocol.messages.config import Config, ModelConfig, ServerConfig
from paged_serve.protocol.messages.handshake import check_hello
from paged_serve.protocol.messages.message import Hello, Refused
from paged_serve.protocol.process.lifeline import lifeline_pipe
from paged_serve.protocol.transport.authentication import Authenticator, read_secret
from paged_serve.protocol.transport.channel import RouterChannel, new_context
from paged_serve.protocol.transport.run_dir import CONTROL_SOCKET, endpoint

ROOT = Path(__file__).parents[3]
CHILD = """
import sys
from paged_serve.protocol.process.lifeline import arm_lifeline
arm_lifeline(int(sys.argv[1]))
print("armed", flush=True)
{stuck}
"""
PARENT = """
import subprocess, sys, time
from paged_serve.protocol.process.lifeline import lifeline_pipe
children, code, threaded = int(sys.argv[1]), sys.argv[2], len(sys.argv) > 3
read_end, write_end = lifeline_pipe()
spawned = [
    subprocess.Popen([sys.executable, "-c", code, str(read_end)], pass_fds=[read_end], stdout=subprocess.PIPE)
    for _ in range(children)
]
for child in spawned:
    child.stdout.readline()
print(*[child.pid for child in spawned], flush=True)
time.sleep(60)
"""
STUCK_IN_C = {
    "power": "10 ** (10 ** 8)",
    "regular expression": "import re; re.match('(a*)*b', 'a' * 40)",
    "asleep": "import time; time.sleep(60)",
}


def spawn(code, *arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], cwd=ROOT, stdout=subprocess.PIPE, text=True, **options
    )


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def seconds_until_gone(pids, limit_s=60.0):
    started = time.monotonic()
    try:
        while any(alive(pid) for pid in pids) and time.monotonic() - started < limit_s:
            time.sleep(0.001)
        return time.monotonic() - started
    finally:
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("stuck", STUCK_IN_C)
def test_no_child_outlives_a_killed_parent_even_stuck_in_c(stuck):
    with spawn(PARENT, 2, CHILD.format(stuck=STUCK_IN_C[stuck])) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        time.sleep(0.1)  # so that they are inside the C function
        assert len(pids) == 2
        assert all(map(alive, pids))
        parent.kill()
        took_s = seconds_until_gone(pids)
    print(f"{stuck}: gone after {1000 * took_s:.1f} ms")
    assert took_s < 60


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_thousand_killed_parents_leave_no_child():
    slowest_s = 0.0
    for _ in range(500):
        with spawn(PARENT, 2, CHILD.format(stuck=STUCK_IN_C["power"])) as parent:
            pids = [int(pid) for pid in parent.stdout.readline().split()]
            parent.kill()
            slowest_s = max(slowest_s, seconds_until_gone(pids))
    print(f"slowest {1000 * slowest_s:.1f} ms")
    assert slowest_s < 60


def test_a_child_whose_parent_is_gone_before_it_arms_ends_at_once():
    read_end, write_end = lifeline_pipe()
    os.close(write_end)
    with spawn(CHILD.format(stuck=STUCK_IN_C["asleep"]), read_end, pass_fds=[read_end]) as child:
        os.close(read_end)
        assert child.wait(timeout=60) == -signal.SIGKILL
        assert child.stdout.read() == ""


def test_a_child_survives_the_end_of_its_sibling():
    read_end, write_end = lifeline_pipe()
    code = CHILD.format(stuck="sys.stdin.read()")
    with (
        spawn(code, read_end, pass_fds=[read_end], stdin=subprocess.PIPE) as first,
        spawn(code, read_end, pass_fds=[read_end], stdin=subprocess.PIPE) as second,
    ):
        os.close(read_end)
        assert first.stdout.readline() == second.stdout.readline() == "armed\n"
        first.kill()
        first.wait()
        time.sleep(0.05)
        assert second.poll() is None
        os.close(write_end)
        assert second.wait(timeout=60) == -signal.SIGKILL


BODY = """
import os, resource, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # as from a terminal, wherever the tests were started
from paged_serve.protocol.errors import *
from paged_serve.protocol.process.lifecycle import run_child
def leave_no_memory_for_threads():
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + (1 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
def body(child):
    {body}
run_child("worker", body)
"""


class Supervised:
    """A supervisor's end of the control link, and one child."""

    def __init__(self, run_dir, code):
        self.context = new_context()
        self.authenticator = Authenticator(self.context, read_secret(run_dir))
        self.router = RouterChannel(self.context, endpoint(run_dir, CONTROL_SOCKET), control.FromChild)
        read_end, self.write_end = lifeline_pipe()
        arguments = ["--run-dir", run_dir, "--index", 3, "--epoch", 7, "--lifeline-fd", read_end]
        self.process = spawn(code, *arguments, pass_fds=[read_end], stderr=subprocess.PIPE)
        os.close(read_end)

    def next(self):
        assert self.router.socket.poll(60_000), self.process.communicate()
        delivered = self.router.receive()
        assert delivered is not None
        return delivered

    def close(self):
        self.process.kill()
        self.process.communicate()
        os.close(self.write_end)
        self.router.close()
        self.authenticator.close()
        self.context.term()


@contextmanager
def supervised(run_dir, body, config=None):
    supervisor = Supervised(run_dir, BODY.format(body=body))
    try:
        peer, hello = supervisor.next()
        assert isinstance(hello, Hello)
        assert (hello.role, hello.index, hello.epoch, check_hello(hello)) == ("worker", 3, 7, "")
        assert hello.pid == supervisor.process.pid
        assert peer.startswith(b"worker:3:7:")
        supervisor.peer = peer
        if config is not None:
            supervisor.router.send(peer, control.Welcome(config))
        yield supervisor
    finally:
        supervisor.close()


def test_a_child_receives_its_configuration_and_ends_with_zero(run_dir):
    config = Config(model=ModelConfig(model="a model"), server=ServerConfig(log_level="debug"))
    with supervised(run_dir, "print(child.config.for_print(), child.index, child.epoch)", config) as supervisor:
        out, errors = supervisor.process.communicate(timeout=60)
        assert out == f"{config.for_print()} 3 7\n"
        assert errors == ""
        assert supervisor.process.returncode == 0


@pytest.mark.nightly
def test_a_child_waits_for_a_supervisor_that_is_halted_during_the_start(run_dir):
    with supervised(run_dir, "print('up')") as supervisor:
        time.sleep(35.0)
        supervisor.router.send(supervisor.peer, control.Welcome(Config()))
        assert supervisor.process.communicate(timeout=60)[0] == "up\n"


def test_heartbeats_go_out_at_most_every_quarter_second(run_dir):
    body = "[child.heartbeat(now / 10, now) for now in range(11)]"
    with supervised(run_dir, body, Config()) as supervisor:
        beats = [supervisor.next()[1] for _ in range(4)]
        assert beats == [control.Heartbeat(step) for step in (0, 3, 6, 9)]
        assert supervisor.process.wait(timeout=60) == 0
        assert supervisor.router.receive() is None


@pytest.mark.parametrize(
    ("body", "failure", "exit_code"),
    [
        ("raise ConfigError('no model in /nowhere')", control.Failed("no model in /nowhere", True), 2),
        ("raise MemoryShortage('full')", control.Failed("MemoryShortage: full", False), 1),
        ("child.epoch = 0; raise MemoryShortage('full')", control.Failed("full", True), 2),
        ("1 / 0", control.Failed("ZeroDivisionError: division by zero", False), 1),
        ("raise ValueError('x' * 20_000)", control.Failed("ValueError: " + "x" * 16372, False), 1),
        ("child.context.socket(3); raise MemoryError('full')", control.Failed("MemoryError: full", False), 1),
        ("threading.Thread(target=time.sleep, args=(600,)).start(); 1 / 0", None, 1),
        ("leave_no_memory_for_threads(); raise ConfigError('full')", control.Failed("full", True), 2),
    ],
)
def test_a_failing_child_reports_the_reason_and_ends_soon(run_dir, body, failure, exit_code):
    with supervised(run_dir, body, Config()) as supervisor:
        _, failed = supervisor.next()
        assert failed == failure or failure is None
        assert supervisor.process.wait(timeout=60) == exit_code
        assert "worker-3 ends with an error" in supervisor.process.communicate()[1]


def test_a_refused_child_ends_with_two(run_dir):
    with supervised(run_dir, "print('never')") as supervisor:
        supervisor.router.send(supervisor.peer, Refused("another version"))
        out, errors = supervisor.process.communicate(timeout=60)
        assert supervisor.process.returncode == 2
        assert out == ""
        assert "another version" in errors


def test_a_child_without_a_secret_ends_with_two(tmp_path):
    read_end, write_end = lifeline_pipe()
    options = ["--run-dir", tmp_path, "--index", 0, "--epoch", 0, "--lifeline-fd", read_end]
    with spawn(BODY.format(body="pass"), *options, pass_fds=[read_end], stderr=subprocess.PIPE) as child:
        os.close(read_end)
        assert child.wait(timeout=60) == 2
        assert "cannot read" in child.stderr.read()
    os.close(write_end)


def test_sigterm_sets_the_flag_and_sigint_does_nothing(run_dir):
    body = """while not child.stop_requested: print('up', flush=True), time.sleep(0.01)
    print('stopping')"""
    with supervised(run_dir, body, Config()) as supervisor:
        assert supervisor.process.stdout.readline() == "up\n"
        supervisor.process.send_signal(signal.SIGINT)
        for _ in range(5):
            assert supervisor.process.stdout.readline() == "up\n"
        supervisor.process.send_signal(signal.SIGTERM)
        assert supervisor.process.stdout.read().endswith("stopping\n")
        assert supervisor.process.wait(timeout=60) == 0
