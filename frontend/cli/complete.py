"""`paged-serve complete`: continues one prompt."""

import sys
from typing import Any

import click

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.message import has_half_pair

from ..config.grouped_command import GroupedCommand
from .terminal import sampling, server, terminal_options

DEFAULT_MAX_TOKENS = 256


@click.command("complete", cls=GroupedCommand)
@click.option("--prompt", "-p", metavar="TEXT", help="The text to continue; default: standard input.")
@terminal_options
def command(*, prompt: str | None, **flags: Any) -> None:
    """Continue --prompt with MODEL, or with the server at --url."""
    text = sys.stdin.read() if prompt is None else prompt
    if has_half_pair(text):  # of bytes that the locale cannot decode
        raise InvalidRequest(f"the prompt is not valid {sys.stdin.encoding}")
    with server(flags) as (client, model):
        body = {"model": model, "prompt": text, "max_tokens": DEFAULT_MAX_TOKENS, **sampling(flags)}
        for event in client.stream("/v1/completions", body):
            for choice in event["choices"]:
                click.echo(choice["text"], nl=False)
    click.echo()
