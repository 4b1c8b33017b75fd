"""The command `paged-serve chat`, and the loop that reads typed input."""

from pathlib import Path
from typing import Any

import click

from paged_serve.protocol.errors import PagedServeError

from ..cli.terminal import sampling, server, terminal_options
from ..config.grouped_command import GroupedCommand
from . import commands
from .conversation import Chat
from .reader import Reader, line_editing
from .session import Session, read_tools


@click.command("chat", cls=GroupedCommand)
@click.option("--system", metavar="TEXT", help="Instructions before the conversation.")
@click.option("--tools", metavar="FILE", type=click.Path(path_type=Path), help="A JSON list of functions it may call.")
@click.option("--load", metavar="FILE", type=click.Path(path_type=Path), help="Continue a conversation saved by /save.")
@click.option("--stats", is_flag=True, help="Show tokens per second.")
@click.option("--history/--no-history", default=True, help="Keep typed lines as history for later chats.")
@terminal_options
def command(
    *, system: str | None, tools: Path | None, load: Path | None, stats: bool, history: bool, **flags: Any
) -> None:
    """Chat with MODEL, or with the server at --url. Ctrl-C ends an answer, ctrl-D the chat; /help lists commands."""
    session = Session("")
    if load is not None:
        session.load(load)
    session.system = system if system is not None else session.system
    session.tools = session.tools if tools is None else read_tools(tools)
    session.fields |= sampling(flags)
    with server(flags) as (client, model), line_editing([*commands.COMMANDS], keeps_history=history):
        session.model = model
        click.echo(f"{model}: /help lists commands, ctrl-D ends", err=True)
        converse(Chat(client, session, Reader(), shows_figures=stats))


def converse(chat: Chat) -> None:
    """Run the chat until the input ends or /exit is typed."""
    while not chat.has_ended:
        try:
            text = chat.reader.read()
        except KeyboardInterrupt:
            text = None
        if text is None:
            click.echo()
            return
        if text.startswith("/") and not text.startswith("//"):
            _run(chat, text)
        elif text:
            chat.ask(text.removeprefix("/") if text.startswith("//") else text)


def _run(chat: Chat, line: str) -> None:
    try:
        shown = commands.run(chat, line)
    except PagedServeError as error:
        click.echo(f"[{error}]", err=True)
        return
    if shown:
        click.echo(shown)
