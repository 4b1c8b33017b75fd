"""Tunes glibc's allocator for memory that a step frees."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from malloc.h
_LARGEST_MMAP_THRESHOLD = 32 << 20  # bytes; glibc refuses more


def keep_freed_memory() -> bool:
    """Make glibc keep freed buffers for the next step. Returns False without glibc.

    Every step allocates the same temporaries of some megabytes. By default glibc returns them to the kernel, which
    zeroes each page again: this took more than half of a decode step of 64 rows.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1) and mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD))


def release_freed_memory() -> None:
    """Return free memory to the kernel, holes included.

    During loading, small long-lived tensors are placed in the space of large tensors that were freed, so the next large
    tensors need new space. Over all layers this adds a third of the weights' size.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
