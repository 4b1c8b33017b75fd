"""The frontend's side of one helper, and the link to it."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import TypeVar

import msgspec

from paged_serve.protocol.process.lifeline import is_stopped, lifeline_pipe

from ..python_command import loader_environment
from .frames import frame_of, receive_frame

ANSWERS_WITHIN_S = 5.0  # real time; then a halted process is replaced, and one that lacks processor time gets longer
STARVES_WITHIN_S = 60.0
# The program has no environment, so it gets this process's module path as an argument.
_PROGRAM = "import sys; sys.path[:] = sys.argv.pop().split({separator!r}); from {module} import main; main()"

Answer = TypeVar("Answer")


class HelperProcess:
    """Runs `main` of a module in a process with hardly any environment. Raises OSError when it cannot be started."""

    def __init__(self, module: str):
        ours, theirs = socket.socketpair()
        lifeline_read, self._lifeline = lifeline_pipe()
        inherited = (lifeline_read, theirs.fileno())
        program = _PROGRAM.format(separator=os.pathsep, module=module)
        try:
            arguments = [*map(str, inherited), os.pathsep.join(sys.path)]
            command = [sys.executable, "-I", "-c", program, *arguments]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=inherited, env=loader_environment()
            )
        except OSError:
            ours.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(lifeline_read)
        self._link = ours
        self.answer_timeout_s = ANSWERS_WITHIN_S
        self.pid = self._process.pid
        self.used_at = time.monotonic()

    def ask(self, message: msgspec.Struct, answer: type[Answer]) -> Answer:
        """Send `message`, wait for the answer; without one raises OSError (TimeoutError) or EOFError. Then close it."""
        gives_up_at = time.monotonic() + STARVES_WITHIN_S
        unsent = memoryview(frame_of(message))
        while unsent:
            self._await(select.POLLOUT, gives_up_at)
            unsent = unsent[self._link.send(unsent, socket.MSG_DONTWAIT) :]
        frame = receive_frame(self._link, lambda: self._await(select.POLLIN, gives_up_at))
        return msgspec.json.decode(frame, type=answer)

    def _await(self, event: int, gives_up_at: float) -> None:
        """Wait until the link can be written or read. Raises TimeoutError."""
        link = select.poll()
        link.register(self._link, event)
        while not link.poll(1000 * self.answer_timeout_s):
            if is_stopped(self.pid) or time.monotonic() >= gives_up_at:
                raise TimeoutError

    def close(self) -> bool:
        """End the process; True if the kernel had ended it for exceeding its processor time."""
        self._link.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.1)  # it may already be ending, and its exit status is what matters
        self._process.kill()
        os.close(self._lifeline)
        return self._process.wait() == -signal.SIGPROF
