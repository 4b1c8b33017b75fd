"""`paged-serve`: the list of commands, each imported only when it is called."""

import errno
import io
import os
import sys
from typing import NoReturn

import click

from ..config.words import closest
from .lazy import LazyGroup

_CLI = "paged_serve.frontend.cli"
COMMANDS = {  # name: (module, line in the help)
    "serve": (f"{_CLI}.serve", "Serve a model over HTTP; this is what `paged-serve MODEL` does."),
    "chat": (
        "paged_serve.frontend.chat.command",
        "Chat in the terminal, with a running server or a local model.",
    ),
    "complete": (f"{_CLI}.complete", "Complete one prompt in the terminal."),
    "pull": ("paged_serve.frontend.hub.pull", "Download a model from the Hugging Face hub."),
    "ls": ("paged_serve.frontend.hub.ls", "List the downloaded models."),
    "rm": ("paged_serve.frontend.hub.rm", "Remove a downloaded model."),
    "run-batch": ("paged_serve.frontend.run_batch.command", "Answer the requests of a file, into another file."),
    "bench": ("paged_serve.frontend.bench.command", "Measure a model, a server, or a start."),
    "keygen": (f"{_CLI}.keygen", "Make a key pair for a client on another host, or for its server."),
    "config": (f"{_CLI}.config", "Show the configuration that `serve` would use, and where each value comes from."),
    "doctor": (
        f"{_CLI}.doctor",
        "Show what happened when a server lost a process, from the server's report.",
    ),
    "requests": (f"{_CLI}.requests", "List the requests that running servers are answering, or end some of them."),
    "completion": (f"{_CLI}.completion", "Print the shell's completion script."),
}

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Commands(LazyGroup):
    """Runs `serve` when no command is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing and (not args or args[0] not in {*COMMANDS, "--help", "-h", "--version"}):
            if args and (meant := _misspelt_command(args[0])):
                raise click.UsageError(f"No such command or model folder {args[0]!r}. Did you mean {meant!r}?", ctx)
            if len(args) > 1 and not args[1].startswith("-") and _is_word(args[0]):
                raise click.UsageError(f"No such command or model folder {args[0]!r}; see --help.", ctx)
            args = ["serve", *args]
        return super().parse_args(ctx, args)


def _is_word(argument: str) -> bool:
    return not (argument.startswith("-") or "/" in argument or os.path.exists(argument))


def _misspelt_command(word: str) -> str:
    return closest(word, COMMANDS) if _is_word(word) else ""


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from paged_serve import __version__

        click.echo(f"paged-serve {__version__}")
        ctx.exit()


@click.group(
    cls=Commands,
    table=COMMANDS,
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
    from paged_serve.protocol.process.log_format import in_json

    from ..end_message import print_end

    _open_streams()
    try:
        status = cli.main(prog_name="paged-serve", standalone_mode=not in_json())
        sys.exit(status if isinstance(status, int) else 0)
    except PagedServeError as error:
        print_end(str(error))
        sys.exit(2 if isinstance(error, (ConfigError, InvalidRequest)) else 1)
    except click.ClickException as error:  # as a JSON line; otherwise click has printed it
        print_end(error.format_message())
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(1)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        print_end(f"what it prints cannot be written: {error.strerror}")
        sys.exit(1)
    raise AssertionError("click has ended the process")


def _open_streams() -> None:
    """Closed streams become empty ones, and text outside the locale's encoding no longer ends a command.

    Bytes that cannot be decoded reach the command, which refuses them; characters that cannot be encoded are escaped.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # otherwise a socket or a file would get its number
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
