"""Confines a process before it runs code from a model folder: memory, files, privileges, system calls."""

import contextlib
import ctypes
import os
import resource

_PR_SET_NO_NEW_PRIVS = 38
_LIBSECCOMP = "libseccomp.so.2"
_SCMP_ACT_ALLOW = 0x7FFF0000
_SCMP_ACT_ERRNO = 0x00050000
_EPERM = 1
# Enough for a process that has loaded its code: its link, memory, signals, time, and exit.
ALLOWED_CALLS = (
    *("read", "write", "recvfrom", "recvmsg", "sendto", "sendmsg", "poll", "ppoll", "close", "lseek", "fstat"),
    *("mmap", "munmap", "mremap", "mprotect", "madvise", "brk", "futex", "sched_yield", "restart_syscall"),
    *("rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "setitimer", "getitimer"),
    *("clock_gettime", "clock_nanosleep", "nanosleep", "gettimeofday", "time", "getrandom"),
    *("getpid", "gettid", "exit", "exit_group", "rseq", "set_robust_list"),
)


def limit_resources(memory_bytes: int) -> None:
    """Limit memory to `memory_bytes`, and forbid core dumps and writing to files."""
    for kind, soft in ((resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
        resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))


def forbid_new_privileges() -> None:
    """Set PR_SET_NO_NEW_PRIVS: no program that this process runs gains privileges (setuid). Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")


def forbid_system_calls() -> bool:
    """From now on any call outside ALLOWED_CALLS fails with EPERM; False where there is no libseccomp.

    Raises OSError when the kernel refuses the filter.
    """
    try:
        library = ctypes.CDLL(_LIBSECCOMP)
    except OSError:
        return False
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_load.argtypes = library.seccomp_release.argtypes = [ctypes.c_void_p]
    library.seccomp_rule_add_array.argtypes = [
        *(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p)
    ]
    context = library.seccomp_init(_SCMP_ACT_ERRNO | _EPERM)
    with contextlib.ExitStack() as stack:
        stack.callback(library.seccomp_release, context)
        for name in ALLOWED_CALLS:
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number >= 0:  # the call exists on this architecture
                _check(library.seccomp_rule_add_array(context, _SCMP_ACT_ALLOW, number, 0, None))
        _check(library.seccomp_load(context))
    return True


def _check(code: int) -> None:
    if code:
        raise OSError(-code, f"seccomp: {os.strerror(-code)}")
