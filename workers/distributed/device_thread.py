"""Threads that use a rank's device while its steps run."""

import threading
from collections.abc import Callable

import torch


def device_thread(work: Callable[[], None], name: str) -> threading.Thread:
    """A daemon thread with the CUDA device of the thread that makes it; a new thread has device 0.

    There a tensor on "cuda" would be in the memory of another rank's device, and waiting for an event would create a
    context on it, which takes several hundred megabytes.
    """
    is_used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    device = torch.cuda.current_device() if is_used else None

    def run() -> None:
        if device is not None:
            torch.cuda.set_device(device)
        work()

    return threading.Thread(target=run, name=name, daemon=True)
