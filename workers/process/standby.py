"""`python -m paged_serve.workers.process.standby`: a standby worker, started by the supervisor.

It has done the slowest parts of a start that need no rank: torch is imported, the kernel library is loaded, and the
operating system has been asked to read the weight files into the page cache. It holds no weights, no KV cache and no
device. When a worker group is replaced, the standby worker receives an epoch and becomes an ordinary worker.
"""

import gc
import logging
import os
import time
from pathlib import Path

from paged_serve.protocol.messages import control
from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.protocol.process.lifecycle import HEARTBEAT_S, ChildProcess, name_process, run_child
from paged_serve.protocol.process.log import configure_logging

from ..checkpoint.weight_files import weight_files
from ..distributed.memory import resident_bytes
from .torch_import import import_torch

log = logging.getLogger(__name__)


def main(child: ChildProcess) -> None:
    started = time.monotonic()
    prepare(child.config.model)
    child.control.send(control.Ready({}))
    log.info("standing by prepared_s=%.1f memory=%d", time.monotonic() - started, resident_bytes())
    if wait_for_promotion(child):
        from .worker_process import WorkerProcess

        WorkerProcess(child).run()


def prepare(model: ModelConfig) -> None:
    """Do the part of a worker's start that is the same for all ranks and epochs."""
    import_torch()
    from ..kernels.cpu.library import best_library
    from . import worker_process  # noqa: F401
    from .rank import DEMO_MODEL

    if model.device != "cuda" and model.cpu_isa != "torch":
        best_library(None if model.cpu_isa == "auto" else model.cpu_isa)
    for path in weight_files(Path(model.model or DEMO_MODEL)):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


def wait_for_promotion(child: ChildProcess) -> bool:
    """Send heartbeats until the supervisor sends the epoch; False when it sends Stop instead."""
    while not child.stop_requested:
        child.heartbeat(time.monotonic(), 0)
        match child.control.receive(HEARTBEAT_S):
            case control.Promote(epoch=epoch):
                child.role, child.epoch = "worker", epoch
                name = f"worker-{child.index}"
                name_process(name)
                configure_logging(name, child.config.server.log_level)
                log.info("promoted epoch=%d", epoch)
                return True
            case control.Stop():
                child.request_stop()
            case _:
                pass
    return False


if __name__ == "__main__":
    gc.disable()  # as in a worker: until it is ready, it creates only long-lived objects
    run_child("standby", main)
