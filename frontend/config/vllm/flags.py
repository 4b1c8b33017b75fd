"""Lets `serve` run with a command line that was written for vLLM.

Flags that have no effect here are left out, names may have underscores, and a flag that is given once may have several
values. Anything else reaches click as it is.
"""

from collections.abc import Iterator
from typing import Any

import click
import msgspec

from ..options import GroupedCommand
from .options import ANY, INSTEAD_OF_FLAG, NO_EFFECT, OF_SERVER

WITHOUT_EFFECT = "paged_serve.flags_without_effect"  # in the context's meta: flags, in their order
_KNOWN = {name.replace("_", "-"): values for name, values in (NO_EFFECT | OF_SERVER).items()}
_INSTEAD = {name.replace("_", "-"): instead for name, instead in INSTEAD_OF_FLAG.items()}
_SHORT = {"-O": "--optimization-level", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size"}


class ServeCommand(GroupedCommand):
    """A command with the flags of the server."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            args = _CommandLine(self, ctx).translated(args)
        return super().parse_args(ctx, args)


class _CommandLine:
    def __init__(self, command: click.Command, ctx: click.Context):
        options = [option for option in command.get_params(ctx) if isinstance(option, click.Option)]
        self._options = {flag: option for option in options for flag in (*option.opts, *option.secondary_opts)}
        self._ctx = ctx
        self._without_effect: list[str] = ctx.meta.setdefault(WITHOUT_EFFECT, [])

    def translated(self, args: list[str]) -> list[str]:
        return [*self._words(args)]

    def _words(self, args: list[str]) -> Iterator[str]:
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
            elif not self._leave_out(flag, [value] if equals else rest):
                yield word

    def _flag(self, word: str) -> tuple[str, str, str]:
        """(the flag as it is known, "=" or nothing, its value)."""
        flag, equals, value = word.partition("=")
        if flag[:2] == "-O" and flag[2:].isdecimal():
            flag, equals, value = "-O", "=", flag[2:]
        flag = _SHORT.get(flag, flag)
        return flag if flag in self._options else flag.replace("_", "-"), equals, value

    def _leave_out(self, flag: str, values: list[str]) -> bool:
        """Whether the flag has no effect; its value is then taken from `values`. Raises UsageError for others."""
        name = flag.removeprefix("--").partition(".")[0]
        switched_off = name.startswith("no-") and name not in _KNOWN
        name = name.removeprefix("no-") if switched_off else name
        allowed = _KNOWN.get(name)
        if allowed is None:
            if name in _INSTEAD:
                raise click.UsageError(f"{flag} is not supported: {_INSTEAD[name]}.", self._ctx)
            return False
        shown = flag
        if any(isinstance(value, bool) for value in allowed):
            given: Any = not switched_off
        else:
            if not values or values[0].startswith("--"):
                raise click.UsageError(f"{flag} needs a value.", self._ctx)
            text = values.pop(0)
            given, shown = _value(text, allowed), f"{flag} {text}"
        if allowed is not ANY and given not in allowed:
            known = "it is always " + ("on" if allowed[0] is True else "off")
            if not isinstance(allowed[0], bool):
                known = f"only {' or '.join(map(str, allowed))} is"
            raise click.UsageError(f"{shown} is not supported: {_INSTEAD.get(name, known)}.", self._ctx)
        self._without_effect.append(shown)
        return True


def _value(text: str, allowed: tuple[Any, ...]) -> Any:
    if not allowed or isinstance(allowed[0], str):
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
