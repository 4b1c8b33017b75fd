"""`python -m paged_serve.frontend.http.server`: an HTTP frontend, started by the supervisor."""

import functools
import sys

from .early_health import EarlyHealth

if __name__ == "__main__":
    early_health = EarlyHealth(int(sys.argv[sys.argv.index("--http-fd") + 1]))

    from paged_serve.protocol.process.lifecycle import run_child  # slow, so /live is answered before it

    from .http_process import serve

    run_child("frontend", functools.partial(serve, early_health))
