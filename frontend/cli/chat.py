"""`paged-serve chat`: a conversation in the terminal."""

from collections.abc import Iterator
from typing import Any

import click

from paged_serve.protocol.errors import PagedServeError

from ..config.options import GroupedCommand
from .http_client import HttpClient
from .terminal import sampling, server, terminal_options


@click.command("chat", cls=GroupedCommand)
@click.option("--system", metavar="TEXT", help="Instructions that come before the conversation.")
@terminal_options
def command(*, system: str | None, **flags: Any) -> None:
    """Chat with MODEL, or with the server at --url. Ctrl-C ends an answer, ctrl-D the chat, /clear starts anew."""
    import contextlib

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  line editing and history for input()
    with server(flags) as (client, model):
        click.echo(f"{model}: ctrl-D ends, /clear starts anew", err=True)
        converse(client, {"model": model, **sampling(flags)}, system)


def converse(client: HttpClient, fields: dict[str, Any], system: str | None) -> None:
    """Read a line, stream an answer, and again, until the input ends."""
    beginning = [{"role": "system", "content": system}] if system else []
    messages = list(beginning)
    while True:
        try:
            line = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            click.echo()
            return
        if line in ("/exit", "/quit"):
            return
        if line == "/clear":
            messages = list(beginning)
        elif line:
            question = {"role": "user", "content": line}
            answer = _print_answer(_texts(client, {**fields, "messages": [*messages, question]}))
            if answer:  # a refused question is dropped
                messages += [question, {"role": "assistant", "content": answer}]


def _texts(client: HttpClient, body: dict[str, Any]) -> Iterator[str]:
    for event in client.stream("/v1/chat/completions", body):
        for choice in event["choices"]:
            yield choice["delta"].get("content") or ""


def _print_answer(texts: Iterator[str]) -> str:
    """Print the answer as it arrives and return it. An error is printed, and the conversation goes on."""
    printed: list[str] = []
    try:
        for text in texts:
            printed.append(text)
            click.echo(text, nl=False)
    except KeyboardInterrupt:
        pass
    except PagedServeError as error:
        click.echo(f"[{error}]", nl=False, err=True)
    click.echo()
    return "".join(printed)
