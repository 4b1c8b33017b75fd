"""Policy: scheduler, block pool, prefix cache, request lifecycle. Pure Python; sockets only in process.py."""
