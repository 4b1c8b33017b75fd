"""A frontend that waits for its tokenizer for two seconds instead of a minute."""

import functools
import sys

from paged_serve.frontend.http.server.early_health import EarlyHealth
from paged_serve.frontend.http.server.http_process import serve
from paged_serve.frontend.text import poison_texts
from paged_serve.protocol.process.lifecycle import run_child

poison_texts.RETURNS_WITHIN_BEATS = 8
early_health = EarlyHealth(int(sys.argv[sys.argv.index("--http-fd") + 1]))
run_child("frontend", functools.partial(serve, early_health))
