"""Limits on the open files and connections of a process."""

import resource

OPEN_FILES = 65536  # wanted; each connection is one
RESERVED_FILES = 256  # of a frontend: links to other processes, files, connections being refused


def raise_open_files_limit() -> int:
    """Raise the limit as far as the system allows, for this process and its children. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return OPEN_FILES if soft == resource.RLIM_INFINITY else soft


def max_connections_for(open_files: int, num_frontends: int = 1) -> int:
    """How many HTTP connections a frontend may hold with this limit.

    With several frontends, each connection may need another one to pass its request on, and each may be passed as
    many by the others.
    """
    return max(1, (open_files - RESERVED_FILES) // (1 if num_frontends == 1 else 3))
