"""What may happen to the files of a tier."""

import contextlib
import os
import resource


def flip(path, rng):
    raw = bytearray(path.read_bytes())
    if raw:
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        path.write_bytes(raw)


def damage(path, others, rng):
    """One of the accidents that may happen to a file."""
    size = path.stat().st_size or 1
    match rng.randrange(7):
        case 0:
            flip(path, rng)
        case 1:
            os.truncate(path, rng.randrange(size))
        case 2:
            path.write_bytes(path.read_bytes() + bytes(rng.randint(1, 5000)))
        case 3:
            whole = [other for other in others if other.exists()]
            path.write_bytes(rng.choice(whole).read_bytes())  # another block's contents under its name
        case 4:
            path.unlink()
        case 5:  # pages that were never written to the disk
            raw = bytearray(path.read_bytes())
            start = rng.randrange(len(raw)) if raw else 0
            raw[start : start + 512] = bytes(len(raw[start : start + 512]))
            path.write_bytes(raw)
        case 6:
            path.write_bytes(rng.randbytes(size))


@contextlib.contextmanager
def full_disk(free_bytes):
    """No file of this process may grow beyond `free_bytes`: writes are cut short, then fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
