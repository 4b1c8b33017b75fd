"""A frontend whose tokenizer never arrives, as on a network file system without its server."""

import functools
import os
import sys

from paged_serve.frontend.http import service
from paged_serve.frontend.http.server.early_health import EarlyHealth
from paged_serve.frontend.http.server.http_process import serve
from paged_serve.protocol.process.lifecycle import run_child


def hang(folder):
    reader, _writer = os.pipe()
    os.read(reader, 1)


service.Tokenizer = hang
early_health = EarlyHealth(int(sys.argv[sys.argv.index("--http-fd") + 1]))
run_child("frontend", functools.partial(serve, early_health))
