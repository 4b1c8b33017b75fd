"""The parent of all processes: starts them, knows their epochs, replaces those that die, and leaves nothing behind.

worker lost        the group is killed; standby workers or new processes start the next epoch; the core requeues
engine core lost   core and workers are killed and started with the next epoch; the clients resume
frontend lost      a new one starts on the same listening socket
start refused      a restart would not help: everything ends, exit code 2; that of a replacement: exit code 1
too many losses    everything ends, exit code 1

One loop waits on the control socket, on the children's process handles, and on a pipe that signals and other threads
write to. Nothing outlives this process, however it ends: see protocol/process/lifecycle.py.
"""

import logging
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack

import msgspec

from paged_serve.protocol.errors import ConfigError, EngineDead
from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.messages.control import Promote
from paged_serve.protocol.messages.message import has_half_pair
from paged_serve.protocol.process.flight_record import CopyLog
from paged_serve.protocol.transport.run_dir import make_run_dir, remove_dead_run_dirs, remove_run_dir

from ..listen import close_http_socket
from ..python_command import python_environment
from .child_messages import ChildMessages, OnProgress
from .flight_recorder.recorder import FlightRecorder
from .folder_lock import locked_responses
from .lost_children import LostChildren
from .processes.child import MODULES, ChildState, Role, StartInfo
from .processes.hang_detector import HangDetector
from .processes.process_table import ProcessTable, Slot
from .processes.restart_budget import RestartBudget
from .processes.standby_workers import StandbyWorkers
from .read_files import files_read_by
from .recovery import Recovery
from .shutdown import Phase, PhaseEvent, Shutdown
from .shutdown_steps import ShutdownSteps
from .signal_pipe import REPORT_SIGNAL, Request, SignalPipe

log = logging.getLogger(__name__)

OnReady = Callable[[dict[str, str]], None]  # the children's facts, for the banner

ITERATION_S = 0.25  # the longest sleep between two checks for silent children


class Supervisor:
    """Call `start`, then `run` until the end; or `start`, `wait_ready`, and `run` in a separate thread.

    `drain` and `stop` may be called from any thread or signal handler; `run` carries them out and returns.
    """

    def __init__(
        self, config: Config, http_socket: socket.socket | None = None, *, modules: Mapping[Role, str] = MODULES
    ):
        """Takes over `http_socket`, bound and listening; without one only the engine is started, no frontends."""
        self.config = config
        self.exit_code = 0
        self.reason = ""  # why it ended, for people; "" after a requested stop
        self._http_socket = http_socket
        self._modules = modules
        self._shutdown = Shutdown(config.server.drain_timeout_s)
        self._signal_pipe = SignalPipe()
        self._resources = ExitStack()
        self._resources.callback(self._signal_pipe.close)
        if http_socket is not None:
            self._resources.callback(close_http_socket, http_socket, config.server)

    def start(self) -> None:
        """Make the run directory, start every process, bind the control socket; returns before they are ready."""
        with self._resources.pop_all() as resources:  # released unless the whole start succeeds
            _check_texts(self.config)
            self._files = files_read_by(self.config)
            if self._http_socket is not None and self.config.server.store_responses:
                resources.enter_context(locked_responses(self.config.server.store_responses))
            self.run_dir = make_run_dir()
            resources.callback(remove_run_dir, self.run_dir)
            http_fd = -1 if self._http_socket is None else self._http_socket.fileno()
            self._processes = ProcessTable(StartInfo(self.run_dir, _environment(), http_fd, self._modules))
            resources.callback(self._abandon_all)
            self._spawn_all()
            self._open_link(resources)
            self._resources = resources.pop_all()
        log.info("started run_dir=%s processes=%d", self.run_dir, len(self._processes.living))

    def _spawn_all(self) -> None:
        now = time.monotonic()
        num_frontends = 0 if self._http_socket is None else self.config.server.num_frontends
        slots: list[Slot] = [("frontend", index) for index in range(num_frontends)]  # first: /live answers early
        slots += [("worker", rank) for rank in range(self.config.parallel.tensor_parallel_size)]  # they take longest
        slots.append(("engine-core", 0))
        try:
            for slot in slots:
                self._processes.spawn(slot, 0, now)
        except OSError as error:
            raise ConfigError(f"cannot start a process: {error}") from error

    def _open_link(self, resources: ExitStack) -> None:
        # Imported late: ZeroMQ takes longer to import than a child to spawn, and children wait for the socket anyway.
        from .control_link import ControlLink

        remove_dead_run_dirs()
        self._link = ControlLink(self.run_dir)
        resources.callback(self._link.close)
        now = time.monotonic()
        self._standbys = StandbyWorkers(self._processes, self._num_standbys(), now)
        server = self.config.server
        budget = RestartBudget(server.max_restarts, server.restart_window_s)
        self._recovery = Recovery(self._processes, self._link, self._standbys, budget)
        self._recorder = FlightRecorder(
            self.config, self.run_dir, self._processes, lambda child, question: self._link.send(child.peer, question)
        )
        resources.callback(self._recorder.write)
        resources.enter_context(CopyLog(self._recorder.events.append))
        child_messages = ChildMessages(
            self.config, self._processes, self._link, self._recovery, self._shutdown, self._recorder, self._files
        )
        self._lost_children = LostChildren(
            self._processes,
            self._link,
            child_messages,
            HangDetector(self.config.parallel, now),
            self._recovery,
            self._recorder,
            self._shutdown,
            self._give_up,
        )
        self._shutdown_steps = ShutdownSteps(self._processes, self._link)

    def _num_standbys(self) -> int:
        """Standby workers to keep; none for a program that uses the engine without frontends."""
        parallel = self.config.parallel
        wanted = parallel.standby_workers and "standby" in self._modules and self._http_socket is not None
        return parallel.tensor_parallel_size if wanted else 0

    @property
    def pids(self) -> dict[str, int]:
        """Current process ids by name."""
        return {child.name: child.process.pid for child in list(self._processes.living.values())}

    def signals(self) -> AbstractContextManager[None]:
        """Context in which a first SIGINT, SIGTERM or SIGHUP drains and the next stops at once. Main thread only."""
        return self._signal_pipe.signals()

    def drain(self) -> None:
        """Finish all accepted requests, then stop."""
        self._signal_pipe.ask(Request.DRAIN)

    def stop(self) -> None:
        """Stop now; running requests are lost."""
        self._signal_pipe.ask(Request.STOP)

    def wait_ready(self, timeout_s: float = 600.0, on_progress: OnProgress | None = None) -> dict[str, str]:
        """Wait until all children are ready, and return their facts.

        Raises ConfigError (the start was refused) or EngineDead; everything has ended then.
        """
        deadline = time.monotonic() + timeout_s
        while self._shutdown.phase is Phase.STARTING and (left_s := deadline - time.monotonic()) > 0:
            self._iterate(left_s, on_progress)
        if self._shutdown.phase is Phase.SERVING:
            return self.facts()
        if self._shutdown.phase is Phase.STARTING:
            self._give_up(f"not ready after {timeout_s:.0f} s", 1, time.monotonic())
        self.run()
        raise (ConfigError if self.exit_code == 2 else EngineDead)(self.reason or "stopped during the start")

    def run(self, on_progress: OnProgress | None = None, on_ready: OnReady | None = None) -> int:
        """Supervise until no process and no file is left. Returns the exit code: 0 after a requested stop."""
        try:
            while self._shutdown.phase is not Phase.ENDED:
                before = self._shutdown.phase
                self._iterate(ITERATION_S, on_progress)
                if on_ready and before is Phase.STARTING and self._shutdown.phase is Phase.SERVING:
                    on_ready(self.facts())
        finally:
            self._resources.close()
        return self.exit_code

    def _iterate(self, timeout_s: float, on_progress: OnProgress | None) -> None:
        """Sleep until something happens, then act on it."""
        wait_s = min(timeout_s, ITERATION_S, self._shutdown.next_deadline(time.monotonic()))
        readable = self._link.wait(wait_s, [self._signal_pipe.readable, *self._processes.handles()])
        now = time.monotonic()
        self._lost_children.read_control(now, on_progress)
        self._lost_children.reap(readable, now)
        self._obey(now)
        self._lost_children.find_silent(now)
        self._recovery.out_of_memory.tick(now)
        if not self._shutdown.is_over:
            self._spawn_missing(now)
        if self._shutdown.phase is Phase.SERVING:
            self._standbys.tick(now)
        self._recorder.tick(now)
        self._advance(now)

    def _spawn_missing(self, now: float) -> None:
        try:
            for standby in self._processes.spawn_missing(now):
                self._link.send(standby.peer, Promote(standby.epoch))
        except OSError as error:
            self._give_up(str(error), 1, now)

    def facts(self) -> dict[str, str]:
        """Facts that the children have reported, for people."""
        facts: dict[str, str] = {}
        for child in self._processes.of_role("worker", "engine-core", "frontend"):
            facts |= child.facts
        return facts

    # The end

    def _obey(self, now: float) -> None:
        for request in self._signal_pipe.taken():
            phase = self._shutdown.phase
            if request is REPORT_SIGNAL:
                self._recorder.collect("asked for by SIGUSR1", now, asked=True)
            elif phase is Phase.SERVING and request is not Request.STOP:
                log.info("draining timeout_s=%g (the next signal stops at once)", self.config.server.drain_timeout_s)
                self._shutdown.begin_drain(now)
                self._shutdown_steps.send_drain("frontend")
            elif isinstance(request, signal.Signals) or phase is Phase.STARTING:  # no request was accepted yet
                self._begin_stop(now, at_once=True)
            elif request is Request.STOP and not self._shutdown.is_over:
                self._begin_stop(now, at_once=False)

    def _begin_stop(self, now: float, *, at_once: bool) -> None:
        self._shutdown.begin_stop(now, at_once=at_once)
        self._processes.drop_missing()

    def _give_up(self, reason: str, exit_code: int, now: float) -> None:
        self.reason, self.exit_code = reason, exit_code
        if exit_code != 2:  # a refusal is printed as one line on the terminal
            log.error("ending reason=%s", reason)
        self._begin_stop(now, at_once=True)

    def _advance(self, now: float) -> None:
        """Enter the next phase when the current one is done."""
        shutdown, processes = self._shutdown, self._processes
        if shutdown.phase is Phase.STARTING and self._all_ready():
            shutdown.fire(PhaseEvent.READY)
        if shutdown.phase is Phase.DRAINING and self._shutdown_steps.frontends_drained:
            shutdown.fire(PhaseEvent.FRONTENDS_DRAINED)
            self._shutdown_steps.send_drain("engine-core")
        engine_drained = shutdown.phase is Phase.DRAINING_ENGINE and self._shutdown_steps.core_drained
        if engine_drained or shutdown.drain_is_over(now):
            self._begin_stop(now, at_once=False)
        for step in shutdown.steps_due(now, frontends_gone=self._shutdown_steps.frontends_gone):
            self._shutdown_steps.take(step)
        if shutdown.phase is Phase.STOPPING and processes.is_empty:
            shutdown.fire(PhaseEvent.GONE)

    def _all_ready(self) -> bool:
        """Whether all are ready. Workers count too, because their facts may arrive after the core's Ready."""
        children = self._processes.of_role("worker", "engine-core", "frontend")
        return self._processes.is_complete and all(child.state is ChildState.READY for child in children)

    def _abandon_all(self) -> None:
        """Kill the processes that are left: after a failed start, or a bug in the supervisor."""
        for child in self._processes.unfinished():
            self._processes.abandon(child)


def _check_texts(config: Config) -> None:
    """Raise ConfigError for a text that no message can carry, such as a path whose bytes are not UTF-8."""
    for layer in msgspec.structs.asdict(config).values():
        for name, value in msgspec.structs.asdict(layer).items():
            texts = value if isinstance(value, tuple) else (value,)
            if any(isinstance(text, str) and has_half_pair(text) for text in texts):
                raise ConfigError(f"{name}={value!a}: is not UTF-8; give another name")
            if any(isinstance(text, str) and "\0" in text for text in texts):  # no path may, either
                raise ConfigError(f"{name}={value!a}: has a null byte; give another name")


def _environment() -> dict[str, str]:
    # glibc would give each tokenizing thread a separate heap, which keeps the memory of its longest text
    return {"MALLOC_ARENA_MAX": "2", **python_environment()}
