"""The helper's side: it gives up its rights, then answers one frame after another, each within its limits."""

import contextlib
import signal
import socket
import sys
from collections.abc import Callable, Iterator

from paged_serve.protocol.process.lifeline import arm_lifeline

from .confinement import forbid_new_privileges, limit_resources

MAX_MEMORY_BYTES = 512 << 20
MAX_CPU_S = 1.0  # of the processor, for one answer


def run_helper(serve: Callable[[socket.socket], None]) -> None:
    """The whole life of a helper that was started as HelperProcess does; `serve` returns when the link is closed."""
    arm_lifeline(int(sys.argv[1]))
    limit_resources(MAX_MEMORY_BYTES)
    forbid_new_privileges()
    link = socket.socket(fileno=int(sys.argv[2]))
    with link, contextlib.suppress(EOFError, ConnectionError):  # the frontend has ended
        serve(link)


@contextlib.contextmanager
def limited_time() -> Iterator[None]:
    """Of the processor's; then SIGPROF, which ends the process."""
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0.0)
