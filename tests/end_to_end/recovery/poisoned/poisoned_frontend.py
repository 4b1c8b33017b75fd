"""A frontend that crashes while it computes a background response whose input has POISON, like a tokenizer's bug."""

import functools
import os
import signal
import sys

from paged_serve.frontend.http.routes.stored.background_work import BackgroundWork
from paged_serve.frontend.http.server.early_health import EarlyHealth
from paged_serve.frontend.http.server.http_process import serve
from paged_serve.protocol.process.lifecycle import run_child

POISON = "deadly nightshade"

events = BackgroundWork.events


def events_or_die(self):
    if POISON in str(self._body.given):
        os.kill(os.getpid(), signal.SIGSEGV)
    return events(self)


BackgroundWork.events = events_or_die
early_health = EarlyHealth(int(sys.argv[sys.argv.index("--http-fd") + 1]))
run_child("frontend", functools.partial(serve, early_health))
