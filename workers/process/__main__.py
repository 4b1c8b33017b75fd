"""`python -m paged_serve.workers.process`: one tensor-parallel rank, started by the supervisor."""

import gc
import importlib
import threading

from .torch_import import import_torch


def load() -> None:
    import_torch()
    importlib.import_module("paged_serve.workers.process.rank")


if __name__ == "__main__":
    gc.disable()  # until this process is ready: objects loaded until then stay alive; collecting them takes 0.15 s
    # Importing torch is the slowest part of a start; meanwhile this process sends its Hello. If the import fails,
    # the main thread's own import of the module fails too and reports the error.
    threading.Thread(target=load, daemon=True).start()
    from .worker_process import main

    main()
