"""The helper's side: it drops its privileges, then answers one frame after another within its limits."""

import contextlib
import signal
import socket
import sys
from collections.abc import Callable, Iterator

from paged_serve.protocol.process.lifeline import arm_lifeline

from .confinement import forbid_new_privileges, limit_resources

MAX_MEMORY_BYTES = 512 << 20
MAX_CPU_S = 1.0  # processor time for one answer


def run_helper(serve: Callable[[socket.socket], None]) -> None:
    """Run a helper started by HelperProcess until `serve` returns, which it does when the link is closed."""
    arm_lifeline(int(sys.argv[1]))
    limit_resources(MAX_MEMORY_BYTES)
    forbid_new_privileges()
    link = socket.socket(fileno=int(sys.argv[2]))
    with link, contextlib.suppress(EOFError, ConnectionError):  # the frontend has ended
        serve(link)


@contextlib.contextmanager
def limited_time() -> Iterator[None]:
    """Limit the processor time of a block to MAX_CPU_S: beyond it SIGPROF ends the process."""
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0.0)
