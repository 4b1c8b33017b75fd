"""Reads typed input: lines with editing, history and completion on a terminal, several as one between triple quotes."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from paged_serve.protocol.messages.message import has_half_pair

from ..state_folder import state_folder

QUOTES = '"""'
MAX_KEPT = 1000  # lines of history


def history_file() -> Path | None:
    """This user's history file; None for a user without a home folder."""
    folder = state_folder()
    return None if folder is None else folder / "chat_history"


class Reader:
    """Reads lines by `read_line`, which works like `input`: it raises EOFError at the end."""

    def __init__(self, read_line: Callable[[str], str] = input):
        self._read_line = read_line

    def read(self, prompt: str = "> ") -> str | None:
        """A line, or the lines between triple quotes; None: the input has ended. Raises KeyboardInterrupt."""
        try:
            while has_half_pair(text := self._read(prompt)):
                click.echo(f"[not sent: the text is not valid {sys.stdin.encoding}]", err=True)
            return text
        except EOFError:
            return None

    def _read(self, prompt: str) -> str:
        line = self._read_line(prompt)
        if not line.lstrip().startswith(QUOTES):
            return line.strip()
        return self._quoted(line.lstrip().removeprefix(QUOTES))

    def _quoted(self, line: str) -> str:
        lines = []
        while not line.rstrip().endswith(QUOTES):
            lines.append(line)
            line = self._read_line("… ")
        return "\n".join([*lines, line.rstrip().removesuffix(QUOTES)]).strip("\n")


@contextlib.contextmanager
def line_editing(names: Sequence[str], *, keeps_history: bool) -> Iterator[None]:
    """Context in which `input` edits lines, recalls earlier chats, and completes `names`; only on a terminal."""
    try:
        import readline
    except ImportError:  # a Python built without readline
        yield
        return
    if not sys.stdin.isatty():
        yield
        return

    def complete(text: str, number: int) -> str | None:
        found = [name for name in names if name.startswith(text)] if text.startswith("/") else []
        return found[number] if number < len(found) else None

    readline.set_completer_delims(" \t\n")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
    readline.parse_and_bind("set enable-bracketed-paste on")  # pasted text is one input, line breaks included
    path = history_file() if keeps_history else None
    if path is not None:
        with contextlib.suppress(OSError):
            readline.read_history_file(path)
    try:
        yield
    finally:
        if path is not None:
            _keep_history(path)


def _keep_history(path: Path) -> None:
    import readline

    readline.set_history_length(MAX_KEPT)
    with contextlib.suppress(OSError):  # an unwritable home keeps no history
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        readline.write_history_file(path)
