"""Lets `serve` run with a command line that was written for vLLM.

Flags that have no effect here are left out, names may have underscores, and a flag that is given once may have several
values. Anything else reaches click as it is.
"""

from collections.abc import Iterator
from typing import Any

import click
import msgspec

from ..grouped_command import GroupedCommand
from .options import INSTEAD_OF_FLAG, NO_EFFECT, OF_SERVER

WITHOUT_EFFECT = "paged_serve.flags_without_effect"  # in the context's meta: flags, in their order
_KNOWN = {name.replace("_", "-"): values for name, values in (NO_EFFECT | OF_SERVER).items()}
_INSTEAD = {name.replace("_", "-"): instead for name, instead in INSTEAD_OF_FLAG.items()}
_SHORT = {
    "-O": "--optimization-level",
    "-cc": "--compilation-config",
    "-dp": "--data-parallel-size",
    "-pp": "--pipeline-parallel-size",
}


class ServeCommand(GroupedCommand):
    """A command with the flags of the server."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            args = [*_CommandLine(self, ctx).words(args)]
        return super().parse_args(ctx, args)


class _CommandLine:
    def __init__(self, command: click.Command, ctx: click.Context):
        options = [option for option in command.get_params(ctx) if isinstance(option, click.Option)]
        self._options = {flag: option for option in options for flag in (*option.opts, *option.secondary_opts)}
        self._ctx = ctx
        self._without_effect: list[str] = ctx.meta.setdefault(WITHOUT_EFFECT, [])

    def words(self, args: list[str]) -> Iterator[str]:
        """What click gets."""
        rest, has_model = list(args), False
        while rest:
            word = rest.pop(0)
            if word == "--" or not word.startswith("-") or word == "-":
                has_model = True
                yield word
                if word == "--":
                    yield from rest
                    return
                continue
            flag, equals, value = self._flag(word)
            if (option := self._options.get(flag)) is not None:
                yield flag + equals + value
                if option.is_flag:
                    continue
                has_model |= flag == "--model"
                if not equals and rest:
                    yield rest.pop(0)
                while option.multiple and has_model and rest and not rest[0].startswith("-"):
                    yield from (flag, rest.pop(0))
            elif not self._leave_out(flag, value if equals else None, rest):
                yield word

    def _flag(self, word: str) -> tuple[str, str, str]:
        """(the flag as it is known, "=" or nothing, its value)."""
        flag, equals, value = word.partition("=")
        if flag[:2] == "-O" and flag[2:].isdecimal():
            flag, equals, value = "-O", "=", flag[2:]
        head, dot, inner = flag.partition(".")
        flag = _SHORT.get(head, head) + dot + inner
        return flag if flag in self._options else flag.replace("_", "-"), equals, value

    def _leave_out(self, flag: str, text: str | None, rest: list[str]) -> bool:
        """Whether the flag has no effect. Its value is `text`, or taken from `rest`. Raises UsageError for others."""
        name = flag.removeprefix("--").partition(".")[0]
        positive = name.removeprefix("no-")
        if _is_switch(positive):
            if text is not None:
                raise click.UsageError(f"{flag} takes no value.", self._ctx)
            self._add(flag, positive, positive == name)
        elif name in _KNOWN:
            if text is None and (not rest or rest[0].startswith("--")):
                raise click.UsageError(f"{flag} needs a value.", self._ctx)
            text = rest.pop(0) if text is None else text
            self._add(f"{flag} {text}", name, _value(text, _KNOWN[name]))
        elif name in _INSTEAD:
            raise click.UsageError(f"{flag} is not supported: {_INSTEAD[name]}.", self._ctx)
        else:
            return False
        return True

    def _add(self, shown: str, name: str, given: Any) -> None:
        allowed = _KNOWN[name]
        if allowed and given not in allowed:
            known = f"only {' or '.join(map(str, allowed))} is"
            if _is_switch(name):
                known = f"it is always {'on' if allowed[0] else 'off'}"
            raise click.UsageError(f"{shown} is not supported: {_INSTEAD.get(name, known)}.", self._ctx)
        self._without_effect.append(shown)


def _is_switch(name: str) -> bool:
    return any(isinstance(value, bool) for value in _KNOWN.get(name, ()))


def _value(text: str, allowed: tuple[Any, ...]) -> Any:
    if not allowed or isinstance(allowed[0], str):
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
