"""Why no process of ours outlives its parent: a pipe that the parent holds, and the kernel's signal when it breaks.

And whether a process runs at all.
"""

import fcntl
import os
import signal


def lifeline_pipe() -> tuple[int, int]:
    """(read end for any number of children, by `pass_fds`; write end that the parent keeps open and never uses)."""
    return os.pipe()


def arm_lifeline(fd: int) -> None:
    """Have the kernel kill this process with SIGKILL once every write end of `fd`'s pipe is closed.

    No thread of ours takes part, so it works while a C function holds the interpreter; and it is the parent's
    process that counts, not the thread that spawned us (as with PR_SET_PDEATHSIG).
    """
    # The signal's owner belongs to the open file, which all children share: open the pipe anew for this process.
    own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
    os.close(fd)
    fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    try:
        os.read(own, 1)
    except BlockingIOError:
        return  # a writer is there
    os.kill(os.getpid(), signal.SIGKILL)  # the parent died before we had armed


def is_stopped(pid: int) -> bool:
    """Whether the process is halted by SIGSTOP or a debugger."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False
