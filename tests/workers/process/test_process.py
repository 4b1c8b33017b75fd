"""A real worker process; the test acts as its supervisor and its core."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paged_serve.protocol.messages import control, worker
from paged_serve.protocol.messages.config import CacheConfig, Config, ModelConfig, ParallelConfig, SchedulerConfig
from paged_serve.protocol.messages.handshake import check_hello
from paged_serve.protocol.messages.loading import startup
from paged_serve.protocol.messages.message import MAX_STEP_FRAME_BYTES, Hello, Refused, pack_ids, unpack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.process.file_stamps import stamp_of
from paged_serve.protocol.process.lifeline import lifeline_pipe
from paged_serve.protocol.transport.authentication import Authenticator, read_secret
from paged_serve.protocol.transport.channel import RouterChannel, new_context
from paged_serve.protocol.transport.run_dir import (
    CONTROL_SOCKET,
    WORKERS_SOCKET,
    endpoint,
    make_run_dir,
    remove_run_dir,
)

from ..tiny_models.tiny_model import write_tiny_model

ROOT = Path(__file__).parents[3]
DEADLINE_S = 200.0


class Harness:
    """A run directory with both sockets bound, and the workers started in it."""

    def __init__(self, config: Config):
        self.config = config
        self.files: tuple[control.FileStamp, ...] = ()  # that the workers must find unchanged
        self.run_dir = make_run_dir()
        self.context = new_context()
        self.authenticator = Authenticator(self.context, read_secret(self.run_dir))
        self.control = RouterChannel(self.context, endpoint(self.run_dir, CONTROL_SOCKET), control.FromChild)
        self.workers = RouterChannel(
            self.context,
            endpoint(self.run_dir, WORKERS_SOCKET),
            worker.ToCoreFromWorker,
            max_frame_bytes=MAX_STEP_FRAME_BYTES,
        )
        self.lifeline, self._kept_open = lifeline_pipe()
        self.processes: list[subprocess.Popen] = []
        self.peers: dict[int, bytes] = {}  # rank -> its identity on the workers' socket
        self.supervised: list[bytes] = []
        self.num_heartbeats = 0
        self.to_supervisor: list = []  # messages of workers to the supervisor, except Hello and Heartbeat

    def start(self, rank: int) -> None:
        command = [sys.executable, "-m", "paged_serve.workers.process", "--run-dir", self.run_dir, "--index", str(rank)]
        self.processes.append(
            subprocess.Popen(
                [*command, "--epoch", "4", "--lifeline-fd", str(self.lifeline)], pass_fds=(self.lifeline,), cwd=ROOT
            )
        )

    def next_message(self):
        """The next message of any worker to the core; meanwhile messages to the supervisor are handled."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            self.supervise()
            if (received := self.workers.receive()) is not None:
                return received
            self.workers.socket.poll(20)
        raise AssertionError(f"a worker was silent for {DEADLINE_S} s; exit codes {[p.poll() for p in self.processes]}")

    def supervise(self) -> None:
        while (received := self.control.receive()) is not None:
            peer, message = received
            if isinstance(message, Hello):
                self.supervised.append(peer)
                assert self.control.send(peer, control.Welcome(self.config, files=self.files))
            elif isinstance(message, control.Heartbeat):
                self.num_heartbeats += 1
            else:
                self.to_supervisor.append(message)

    def await_heartbeats(self, num: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while self.num_heartbeats < num:
            assert time.monotonic() < deadline
            self.control.socket.poll(20)
            self.supervise()

    def expect(self, kind: type):
        """The next message except LoadProgress, which must be of this kind, and its sender."""
        while True:
            peer, message = self.next_message()
            if not isinstance(message, startup.LoadProgress):
                assert isinstance(message, kind), message
                return peer, message

    def welcome(self) -> None:
        peer, hello = self.expect(Hello)
        assert check_hello(hello) == ""
        assert (hello.role, hello.epoch) == ("worker", 4)
        self.peers[hello.index] = peer
        assert self.workers.send(peer, worker.Welcome(4))

    def to_all(self, message) -> None:
        for peer in self.peers.values():
            assert self.workers.send(peer, message)

    def load_all(self) -> list[startup.WorkerReady]:
        """Take every rank from Hello to a KV cache of 32 blocks."""
        for _ in self.processes:
            self.welcome()
        ready = [self.expect(startup.WorkerReady)[1] for _ in self.processes]
        self.to_all(startup.CreateKVCache(32))
        for _ in self.processes:
            self.expect(startup.KVCacheReady)
        return ready

    def exit_codes(self) -> list[int]:
        deadline = time.monotonic() + DEADLINE_S
        while any(process.poll() is None for process in self.processes) and time.monotonic() < deadline:
            self.supervise()
            self.control.socket.poll(20)
        self.supervise()
        return [process.poll() for process in self.processes]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.control.close()
        self.workers.close()
        self.authenticator.close()
        self.context.term()
        os.close(self.lifeline)
        os.close(self._kept_open)
        remove_run_dir(self.run_dir)


@pytest.fixture
def harnesses(tmp_path):
    """Makes harnesses for the tiny model (or another folder) and closes them."""
    made = []

    def make(folder: str | None = None, ranks: int = 1, step_timeout_s: float = 300.0, **model) -> Harness:
        folder = write_tiny_model(tmp_path) if folder is None else folder
        config = Config(
            model=ModelConfig(model=folder, **{"device": "cpu", **model}),
            cache=CacheConfig(num_blocks=32),
            scheduler=SchedulerConfig(max_num_seqs=4),
            parallel=ParallelConfig(tensor_parallel_size=ranks, threads_per_rank=1, step_timeout_s=step_timeout_s),
        )
        made.append(Harness(config))
        for rank in range(ranks):
            made[-1].start(rank)
        return made[-1]

    yield make
    for harness in made:
        harness.close()


def new_row(row: int, prompt: list[int], params: SamplingParams) -> worker.NewRow:
    return worker.NewRow(row, pack_ids(prompt), len(prompt), 0, (pack_ids([row]),), 7, (2,), params)


def first_plans() -> list[worker.SchedulerOutput]:
    rows = (new_row(0, [5, 6, 7], SamplingParams(logprobs=2)), new_row(2, [8, 9], SamplingParams(temperature=0.0)))
    chunks = (worker.Chunk(0, 3), worker.Chunk(2, 2))
    return [
        worker.SchedulerOutput(4, 0, rows, chunks=chunks),
        worker.SchedulerOutput(4, 1, decode_joins=pack_ids([2, 0])),
        worker.SchedulerOutput(4, 2),
    ]


def test_a_worker_loads_executes_and_stops_on_command_and_two_ranks_answer_as_it_does(harnesses, tmp_path):
    harness = harnesses()
    (ready,) = harness.load_all()
    assert (ready.rank, ready.num_blocks, ready.vocab_size, ready.device) == (0, 32, 300, "cpu")
    for plan in first_plans():  # two in flight, as in production
        harness.to_all(plan)
    outputs = [harness.expect(worker.ModelRunnerOutput)[1] for _ in range(3)]
    assert [output.step for output in outputs] == [0, 1, 2]
    assert [len(unpack_ids(output.token_ids)) for output in outputs] == [2, 2, 2]
    assert all(output.epoch == 4 and output.logprobs[0].index == 0 for output in outputs)
    assert [type(message) for message in harness.to_supervisor] == [control.Ready]
    harness.to_all(worker.Shutdown())
    assert harness.exit_codes() == [0]

    pair = harnesses(str(tmp_path), ranks=2)
    pair.load_all()
    for plan in first_plans():
        pair.to_all(plan)
    of_pair = [pair.expect(worker.ModelRunnerOutput)[1].token_ids for _ in range(3)]
    assert of_pair == [output.token_ids for output in outputs]
    pair.to_all(worker.Shutdown())
    assert pair.exit_codes() == [0, 0]


def test_a_signal_stops_a_worker(harnesses):
    harness = harnesses()
    harness.load_all()
    harness.processes[0].terminate()
    assert harness.exit_codes() == [0]


def test_a_worker_waits_for_its_core_and_obeys_the_supervisor_meanwhile(harnesses):
    harness = harnesses()
    harness.workers.close()
    harness.await_heartbeats(2)
    harness.control.send(harness.supervised[0], control.Stop())
    assert harness.exit_codes() == [0]  # it would wait for its core for --step-timeout, which is five times as long


def test_a_worker_without_a_core_ends_after_the_step_timeout(harnesses):
    harness = harnesses(step_timeout_s=1.0)
    harness.workers.close()
    assert harness.exit_codes() == [1]
    (failed,) = harness.to_supervisor
    assert failed.reason.endswith("after 1 s (--step-timeout)")


@pytest.mark.parametrize(
    ("folder", "model", "expected"),
    [
        ("/nonexistent", {}, "/nonexistent"),
        # test_rank.py has its message.
        pytest.param(None, {"max_model_len": 9999}, "9999", marks=pytest.mark.nightly),
    ],
)
def test_an_impossible_model_is_refused_with_the_reason(harnesses, folder, model, expected):
    harness = harnesses(folder, **model)
    harness.welcome()
    _, failed = harness.expect(worker.WorkerFailed)
    assert failed.refused
    assert expected in failed.reason
    assert harness.exit_codes() == [2]
    assert harness.to_supervisor == [control.Failed(failed.reason, refused=True)]


@pytest.mark.parametrize(("stale", "exit_code"), [(True, 1), (False, 2)])
def test_a_refused_worker_of_an_old_group_ends_as_lost_and_any_other_as_refused(harnesses, stale, exit_code):
    harness = harnesses()
    peer, _ = harness.expect(Hello)
    assert harness.workers.send(peer, Refused("worker group 4; group 5 is in use", stale))
    assert harness.exit_codes() == [exit_code]
    [failed] = harness.to_supervisor
    assert "group 5 is in use" in failed.reason
    assert failed.refused is not stale


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_worker_refuses_weights_that_were_written_after_the_server_had_started(harnesses, is_loaded):
    harness = harnesses()
    weights = Path(harness.config.model.model, "model.safetensors")
    harness.files = (stamp_of(weights),)
    if is_loaded:
        harness.welcome()
        harness.expect(startup.WorkerReady)
    os.utime(weights, ns=(0, 0))
    if is_loaded:
        harness.to_all(startup.CreateKVCache(32))
    else:
        harness.welcome()
    _, failed = harness.expect(worker.WorkerFailed)
    assert failed.refused
    assert f"{weights} was changed after the server had started" in failed.reason
    assert harness.exit_codes() == [2]


def test_a_broken_plan_ends_the_worker_with_the_reason(harnesses):
    harness = harnesses()
    harness.load_all()
    harness.to_all(worker.SchedulerOutput(4, 0, chunks=(worker.Chunk(1, 5),)))  # the row has no tokens
    _, failed = harness.expect(worker.WorkerFailed)
    assert not failed.refused
    assert "AssertionError" in failed.reason
    assert harness.exit_codes() == [1]


def test_a_plan_that_cannot_be_read_ends_the_worker_at_once(harnesses):
    harness = harnesses()
    harness.load_all()
    harness.workers.socket.send_multipart((harness.peers[0], b"no plan"))
    _, failed = harness.expect(worker.WorkerFailed)
    assert "cannot be read" in failed.reason
    assert harness.exit_codes() == [1]


def test_a_core_that_ends_first_on_a_normal_stop_is_not_an_error(harnesses):
    harness = harnesses()
    harness.load_all()
    os.kill(harness.processes[0].pid, signal.SIGSTOP)
    harness.to_all(first_plans()[0])
    harness.workers.socket.close(linger=1000)  # the plan is still sent
    harness.control.send(harness.supervised[0], control.Stop())
    os.kill(harness.processes[0].pid, signal.SIGCONT)
    assert harness.exit_codes() == [0]
