"""Ends a child process with its parent: the parent holds a pipe open, and the kernel signals the child when it closes.

Also reads the state of a process from /proc.
"""

import contextlib
import fcntl
import os
import signal

RECEIVING_THREADS = "ZMQbg/IO"  # libzmq's name of those that read sockets

_write_ends: dict[int, int] = {}  # descriptor -> inode of its pipe: the number may have been reused since


def lifeline_pipe() -> tuple[int, int]:
    """Make the pipe: (read end, for any number of children by `pass_fds`; write end, for the parent to keep open).

    A fork of the parent closes its copy of the write end, which would otherwise keep the children alive.
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

    The kernel does the work, so a C function that holds the interpreter is killed too. Unlike PR_SET_PDEATHSIG, the
    signal depends on the parent process, not on the thread that spawned this one.
    """
    # The signal's owner is a property of the open file, which all children share: open the pipe again for this process.
    own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
    os.close(fd)
    fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    try:
        os.read(own, 1)
    except BlockingIOError:
        return  # the parent is alive
    os.kill(os.getpid(), signal.SIGKILL)  # the parent died before the signal was armed


def is_stopped(pid: int) -> bool:
    """Whether the process is halted by SIGSTOP or a debugger."""
    return _name_and_state(f"/proc/{pid}/stat")[1] in ("T", "t")


def is_halted(pid: int) -> bool:
    """Whether a signal has stopped the process; a stop by a debugger does not count."""
    return _name_and_state(f"/proc/{pid}/stat")[1] == "T"


def is_at_work(pid: int, names: str = "") -> bool:
    """Whether any thread of the process whose name begins with `names` runs, or waits for a core or a disk."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    found = (_name_and_state(f"/proc/{pid}/task/{thread}/stat") for thread in threads)
    return any(state in ("R", "D") and name.startswith(names) for name, state in found)


def is_receiving() -> bool:
    """Whether messages that were sent to this process before may still be unread by its threads for sockets."""
    return is_at_work(os.getpid(), RECEIVING_THREADS)


def _name_and_state(path: str) -> tuple[str, str]:
    """The name and the state letter of a process or thread, as in proc(5); empty when it is gone."""
    try:
        with open(path) as file:
            name, _, fields = file.read().rpartition(")")
        return name.partition("(")[2], fields.split()[0]
    except (OSError, IndexError):
        return "", ""
