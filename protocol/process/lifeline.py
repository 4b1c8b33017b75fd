"""Why no process of ours outlives its parent: a pipe that the parent holds, and the kernel's signal when it breaks.

And what a process does, as the kernel sees it.
"""

import contextlib
import fcntl
import os
import signal

_write_ends: dict[int, int] = {}  # descriptor -> the pipe's inode, as the number may be another file's by now


def lifeline_pipe() -> tuple[int, int]:
    """(read end for any number of children, by `pass_fds`; write end that the parent keeps open and never uses).

    A fork of the parent closes its copy: else the children would live for as long as that process does.
    """
    read_end, write_end = os.pipe()
    _write_ends[write_end] = os.fstat(write_end).st_ino
    return read_end, write_end


def _close_write_ends() -> None:
    for descriptor, inode in _write_ends.items():
        with contextlib.suppress(OSError):
            if os.fstat(descriptor).st_ino == inode:
                os.close(descriptor)
    _write_ends.clear()


os.register_at_fork(after_in_child=_close_write_ends)


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
    return _state(f"/proc/{pid}/stat") in ("T", "t")


def is_halted(pid: int) -> bool:
    """Whether a signal has stopped the process; a debugger's stop is another one."""
    return _state(f"/proc/{pid}/stat") == "T"


def is_at_work(pid: int) -> bool:
    """Whether a thread of the process computes, waits for a core, or for a disk."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return any(_state(f"/proc/{pid}/task/{thread}/stat") in ("R", "D") for thread in threads)


def _state(path: str) -> str:
    """The kernel's letter for what a process or thread does; "" when it is gone."""
    try:
        with open(path) as file:
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
