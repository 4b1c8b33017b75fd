"""`python -m paged_serve.workers.process`: one tensor-parallel rank, started by the supervisor."""

import gc
import importlib
import threading

if __name__ == "__main__":
    gc.disable()  # until this process is ready: objects loaded before stay alive, and a collection of them takes 0.15 s
    # Importing torch takes longer than everything else at a start; meanwhile this process introduces itself. Should
    # the import fail, the main thread's own import of the module fails again, and reports it.
    threading.Thread(target=importlib.import_module, args=("paged_serve.workers.process.rank",), daemon=True).start()
    from .worker_process import main

    main()
