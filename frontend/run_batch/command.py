"""`paged-serve run-batch`: answers OpenAI's batch files with a local model or a running server."""

import sys
from contextlib import closing
from typing import Any

import click

from paged_serve.protocol.errors import ConfigError

from ..cli.terminal import server
from ..config.grouped_command import GroupedCommand
from ..config.options import config_options
from .batch_file import ResultFile
from .runner import BatchRun


@click.command("run-batch", cls=GroupedCommand)
@click.option(
    "--input-file", "-i", "input_path", metavar="FILE", required=True, help="Requests, one JSON object per line."
)
@click.option(
    *("--output-file", "-o", "output_path"),
    metavar="FILE",
    required=True,
    help="Answers, in order of completion. Requests whose custom_id is in this file already are skipped.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1024),
    default=64,
    show_default=True,
    metavar="N",
    help="Requests in flight.",
)
@click.option("--url", "--base-url", "url", metavar="URL", help="URL of a running server, like http://127.0.0.1:8000.")
@config_options
def command(*, input_path: str, output_path: str, concurrency: int, **flags: Any) -> None:
    """Answer the requests of a file with MODEL, or with the server at --url."""
    try:
        with (
            open(input_path, "rb") as requests,
            closing(ResultFile(output_path)) as results,
            server(flags) as (client, _),
        ):
            counts = BatchRun(client, results, concurrency).run(requests)
    except OSError as error:
        raise ConfigError(f"{error.filename or output_path}: {error.strerror}") from None
    if counts.failed:
        sys.exit(1)
