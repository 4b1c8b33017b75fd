"""How this process's C allocator treats memory that a step gives back."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from malloc.h
_LARGEST_MMAP_THRESHOLD = 32 << 20  # bytes; glibc refuses more


def keep_freed_memory() -> bool:
    """Lets glibc keep freed buffers for the next step; False when there is no glibc.

    Every step asks for the same temporaries of some megabytes. By default glibc returns them to the kernel, which
    then zeroes each page anew: more than half of a decode step of 64 rows went there.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1) and mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD))


def release_freed_memory() -> None:
    """Lets the kernel have what is free now, holes included.

    While weights are loaded small tensors that stay come to lie in the room of large ones that have gone, so that the
    next large ones take new room: a third of the weights again, layer after layer.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
