"""`paged-serve`: the list of commands, each imported only when it is called."""

import difflib
import importlib
import os
import sys
from typing import NoReturn

import click

COMMANDS = {  # name: (module, line in the help)
    "serve": ("serve", "Serve a model over HTTP; this is what `paged-serve MODEL` does."),
    "chat": ("chat", "Chat in the terminal, with a running server or a model of your own."),
    "complete": ("complete", "Complete one prompt in the terminal."),
    "config": ("config", "Show the configuration that `serve` would use, and where each value comes from."),
    "completion": ("completion", "Print the shell's completion script."),
}


class Commands(click.Group):
    """Imports a command when it is needed; without one, `serve` is meant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = importlib.import_module(f".{COMMANDS[name][0]}", __package__).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing and (not args or args[0] not in {*COMMANDS, "--help", "-h", "--version"}):
            if args and (meant := _misspelt_command(args[0])):
                raise click.UsageError(f"No such command or model folder {args[0]!r}. Did you mean {meant!r}?", ctx)
            args = ["serve", *args]
        return super().parse_args(ctx, args)


def _misspelt_command(word: str) -> str:
    if word.startswith("-") or "/" in word or os.path.exists(word):
        return ""
    return next(iter(difflib.get_close_matches(word, COMMANDS, n=1, cutoff=0.75)), "")


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from paged_serve import __version__

        click.echo(f"paged-serve {__version__}")
        ctx.exit()


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 118},
    epilog="`paged-serve` alone serves a small built-in model; `paged-serve serve --help` lists all options.",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def cli() -> None:
    """Serve large language models: the same bytes every time, and nothing accepted is ever lost."""


def main() -> NoReturn:
    """Entry point. Exit codes: 0 done, 1 failed, 2 refused (fix what the message says and start again)."""
    from paged_serve.protocol.errors import ConfigError, InvalidRequest, PagedServeError

    try:
        cli.main(prog_name="paged-serve", standalone_mode=True)
    except PagedServeError as error:
        click.echo(f"paged-serve: {error}", err=True)
        sys.exit(2 if isinstance(error, (ConfigError, InvalidRequest)) else 1)
    raise AssertionError("click has ended the process")
