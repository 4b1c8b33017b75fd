"""`paged-serve bench`: the list of what can be measured."""

import click

from ..cli.lazy import LazyGroup

_BENCH = "paged_serve.frontend.bench"
BENCHES = {  # name: (module, line in the help)
    "throughput": (f"{_BENCH}.throughput", "How many requests and tokens a second MODEL does offline."),
    "latency": (f"{_BENCH}.latency", "How long one batch takes, again and again."),
    "serve": (f"{_BENCH}.serve", "How a running server, ours or another, answers a load of requests."),
    "startup": (f"{_BENCH}.startup", "How long a start takes, and what memory it holds."),
}


@click.group("bench", cls=LazyGroup, table=BENCHES)
def command() -> None:
    """Measure a model, a server, or a start. Tables go to stdout; --json FILE keeps everything for programs."""
