"""`paged-serve bench`: the group of its subcommands."""

import click

from ..cli.lazy import LazyGroup

_BENCH = "paged_serve.frontend.bench"
BENCHES = {  # name: (module, help line)
    "throughput": (f"{_BENCH}.throughput", "Requests and tokens per second of MODEL, offline."),
    "latency": (f"{_BENCH}.latency", "Time per batch and per token, over repeated runs."),
    "serve": (f"{_BENCH}.serve", "Throughput and latencies of a running server, paged-serve or another."),
    "startup": (f"{_BENCH}.startup", "Start-up and shutdown times, and memory per process."),
}


@click.group("bench", cls=LazyGroup, table=BENCHES)
def command() -> None:
    """Benchmark a model, a server, or a start. Tables go to stdout; --json FILE writes all figures."""
