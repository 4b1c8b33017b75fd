"""Shared by `chat` and `complete`: their options, and a server to connect to, running or started for the command."""

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import msgspec

from paged_serve.protocol.errors import EngineDead
from paged_serve.protocol.messages.config import Config

from ..config.options import config_options, resolve
from .http_client import HttpClient

SAMPLING = ("max_tokens", "temperature", "top_p")


def terminal_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: --url, the sampling options, and the options of `serve` for a local model."""
    for decorate in (
        click.option(
            *("--url", "--base-url", "url"),
            metavar="URL",
            help="URL of a running server, like http://127.0.0.1:8000, with or without /v1.",
        ),
        click.option("--max-tokens", type=click.IntRange(1), metavar="N", help="Longest answer in tokens."),
        click.option("--temperature", type=click.FloatRange(0), metavar="T", help="Sampling temperature; 0 is greedy."),
        click.option(
            "--top-p",
            type=click.FloatRange(0, 1),
            metavar="P",
            help="Sample from the most probable tokens whose probabilities reach P in sum.",
        ),
        config_options,
    ):
        function = decorate(function)
    return function


def sampling(flags: dict[str, Any]) -> dict[str, Any]:
    """The request's fields for the sampling options that were given."""
    return {name: flags[name] for name in SAMPLING if flags.get(name) is not None}


@contextmanager
def server(flags: dict[str, Any]) -> Iterator[tuple[HttpClient, str]]:
    """A client and the model's name: for --url, or for a server that runs as long as this context."""
    resolved = resolve(flags)
    if url := flags["url"]:
        keys = resolved.config.server.api_keys
        client = HttpClient(url, keys[0] if keys else "")
        yield client, resolved.config.model.model or client.models()[0]
        return
    from paged_serve.protocol.process.log import configure_logging

    from ..listen import open_http_socket
    from ..progress_bar import LoadingBar
    from ..supervision.supervisor import Supervisor
    from .serve import with_local_model

    quiet = "warning" if resolved.origins["server.log_level"] == "default" else resolved.config.server.log_level
    configure_logging("supervisor", quiet)
    config, is_demo = with_local_model(resolved.config)
    with tempfile.TemporaryDirectory(prefix="paged-serve-") as folder:
        path = os.path.join(folder, "http.sock")
        config = _for_this_terminal(config, path, quiet)
        bar = LoadingBar()
        supervisor = Supervisor(config, open_http_socket(config.server))
        supervisor.start()
        try:
            supervisor.wait_ready(on_progress=bar)
        except KeyboardInterrupt:
            supervisor.stop()
            supervisor.run()
            raise
        finally:
            bar.clear()
        if is_demo:
            click.echo("demo model: not a useful assistant", err=True)
        with _supervised(supervisor):
            yield HttpClient(f"unix:{path}"), config.model.served_model_names[0]


def _for_this_terminal(config: Config, path: str, log_level: str) -> Config:
    own = msgspec.structs.replace(
        config.server,
        uds=path,
        api_keys=(),
        num_frontends=1,
        log_level=log_level,
        wake_supervisor=False,  # ctrl-Z is meant to halt it here
    )
    alone = msgspec.structs.replace(config.parallel, standby_workers=False)
    return msgspec.structs.replace(config, server=own, parallel=alone)


@contextmanager
def _supervised(supervisor: Any) -> Iterator[None]:
    thread = threading.Thread(target=supervisor.run, name="supervisor")
    thread.start()
    try:
        yield
    finally:
        supervisor.stop()
        thread.join()
    if supervisor.exit_code:
        raise EngineDead(supervisor.reason)
