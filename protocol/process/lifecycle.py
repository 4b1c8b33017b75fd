"""The lifecycle of a child process: its start, its heartbeats, and its end, which is never later than its parent's."""

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from ..errors import ConfigError, MemoryShortage, PagedServeError, ProtocolError
from ..messages import control
from ..messages.config import Config
from ..messages.control import FileStamp, Welcome
from ..messages.engine_core import CoreFailure
from ..messages.handshake import handshake_hello, identity
from ..messages.message import MAX_LONG_TEXT, Refused
from ..transport.authentication import read_secret
from ..transport.channel import DealerChannel, new_context
from ..transport.run_dir import CONTROL_SOCKET, endpoint
from .flight_record import FlightRecord, record_flight
from .lifeline import arm_lifeline, is_receiving
from .log import configure_logging

if TYPE_CHECKING:
    from ..transport.channel import Context

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.25
LINGER_S = 0.5  # how long an ending process waits for its last message to leave
LONGEST_LINGER_S = 5.0  # the same while the thread that writes sockets waits for a core
EXIT_FAILED = 1
EXIT_REFUSED = 2  # a restart does not help


@dataclass(slots=True)
class ChildProcess:
    """This process, as started by the supervisor: its configuration and its control link.

    The owner's loop reads `control`, calls `heartbeat` at least every 250 ms, and ends when `stop_requested` is set:
    by SIGTERM here, or by the owner itself on a Stop message.
    """

    role: str
    run_dir: str
    index: int
    epoch: int
    http_fd: int | None
    secret: str
    config: Config
    context: "Context"
    control: DealerChannel[control.FromChild, control.ToChild]
    flight: FlightRecord
    core_failures: tuple[CoreFailure, ...] = ()  # of earlier cores
    files: tuple[FileStamp, ...] = ()  # that results depend on, as they were before the first process started
    predecessor_failed: bool = False  # of a frontend: by itself, so a request may be the cause
    stop_requested: bool = False
    report_asked: bool = False  # by SIGUSR1; the supervisor writes the report
    _next_heartbeat: float = 0.0

    @classmethod
    def start(cls, role: str, argv: Sequence[str] | None = None) -> "ChildProcess":
        """Tie this process to its parent, then ask the supervisor for the configuration.

        Raises ConfigError when the supervisor refuses.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C reaches the whole group; the supervisor decides
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the supervisor is connected
        options = _parse(role, argv)
        arm_lifeline(options.lifeline_fd)
        name_process(f"{role}-{options.index}")
        configure_logging(f"{role}-{options.index}")
        flight = record_flight(options.run_dir, f"{role}-{options.index}")
        secret = read_secret(options.run_dir)
        context = new_context()
        link = DealerChannel[control.FromChild, control.ToChild](
            context,
            endpoint(options.run_dir, CONTROL_SOCKET),
            secret,
            identity(role, options.index, options.epoch),
            control.ToChild,
        )
        child = cls(
            role=role,
            run_dir=options.run_dir,
            index=options.index,
            epoch=options.epoch,
            http_fd=options.http_fd,
            secret=secret,
            config=Config(),
            context=context,
            control=link,
            flight=flight,
        )
        signal.signal(signal.SIGTERM, lambda *_: child.request_stop())
        signal.signal(signal.SIGUSR1, lambda *_: child.ask_for_report())
        welcome = child._ask_for_config()
        child.config, child.core_failures, child.files = welcome.config, welcome.core_failures, welcome.files
        child.predecessor_failed = welcome.predecessor_failed
        configure_logging(f"{role}-{child.index}", child.config.server.log_level)
        return child

    def _ask_for_config(self) -> Welcome:
        """Waits as long as the supervisor lives, which may be halted, or still be importing on a slow disk."""
        self.control.wait_connected(None)
        if not self.control.send(handshake_hello(self.role, self.index, self.epoch)):
            raise ProtocolError(f"the supervisor in {self.run_dir} takes no message")
        answer = self.control.receive(None)
        if isinstance(answer, Welcome):
            return answer
        if isinstance(answer, Refused):
            raise ConfigError(f"the supervisor refused this process: {answer.reason}")
        raise ProtocolError(f"expected Welcome from the supervisor, got {type(answer).__name__}")

    def request_stop(self) -> None:
        self.stop_requested = True

    def ask_for_report(self) -> None:
        """Ask the supervisor for a report, with the next heartbeat."""
        self.report_asked = True

    def heartbeat(self, now: float, step: int) -> None:
        """Send the supervisor a heartbeat, at most every 250 ms. `now` in seconds, monotonic."""
        if now >= self._next_heartbeat:
            self.control.send(control.Heartbeat(step))
            if self.report_asked and self.control.send(control.ReportAsked()):
                self.report_asked = False
            self._next_heartbeat = now + HEARTBEAT_S

    def is_refusal(self, error: BaseException) -> bool:
        """Whether `error` ends the service, because starting this process again would not help."""
        may_pass = isinstance(error, MemoryShortage) and self.epoch > 0
        return isinstance(error, ConfigError) and not may_pass

    def fail(self, error: BaseException, refused: bool) -> None:
        """Report to the supervisor why this process ends. `close` waits until the message is sent."""
        reason = str(error) if refused else f"{type(error).__name__}: {error}"
        self.control.send(control.Failed(reason[:MAX_LONG_TEXT], refused))

    def close(self) -> None:
        """Close the control link; queued messages have 500 ms to leave, on a busy machine more."""
        self.control.close(linger_s=LINGER_S)
        # term() blocks while any socket is open, so it gets a deadline.
        ending = threading.Thread(target=self.context.term, daemon=True)
        try:
            ending.start()
        except RuntimeError:  # no memory, or no thread, is left: ZeroMQ's own thread still sends
            time.sleep(LINGER_S)
            return
        ending.join(LINGER_S + 0.1)
        latest = time.monotonic() + LONGEST_LINGER_S
        while ending.is_alive() and is_receiving() and time.monotonic() < latest:
            ending.join(0.05)


def name_process(name: str) -> None:
    """Set the name that `ps -o comm` and `top` show: the first 15 bytes of `name`."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


def _parse(role: str, argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"paged-serve {role}", description="Started by the supervisor, not by hand.")
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--epoch", type=int, required=True)
    parser.add_argument("--lifeline-fd", type=int, required=True)
    parser.add_argument("--http-fd", type=int)
    return parser.parse_args(argv)


def run_child(role: str, body: Callable[[ChildProcess], None]) -> NoReturn:
    """A process's main function: start, run `body`, report what went wrong, end. Exit code 0, 1, or 2 (refused)."""
    exit_code = 0
    child = None
    try:
        child = ChildProcess.start(role)
        body(child)
    except Exception as error:
        refused = isinstance(error, ConfigError) if child is None else child.is_refusal(error)
        exit_code = EXIT_REFUSED if refused else EXIT_FAILED
        is_expected = isinstance(error, PagedServeError)  # its text suffices without a traceback
        log.error("ends with an error: %s", error, exc_info=not is_expected)
        if child is not None:
            child.fail(error, refused)
    if child is not None:
        child.close()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # no thread or destructor of a library may delay the end of the process
