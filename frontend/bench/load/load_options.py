"""The options that describe a load, the same for `throughput` and `serve`."""

from collections.abc import Callable
from typing import Any

import click

from ...config.options import GroupedOption
from .load import Lengths, LoadRequest, random_load, read_load


def parsed_by(parse: Callable[[Any], Any]) -> Callable[..., Any]:
    """A callback of an option: what `parse` makes of the text, or a usage error with the words of its ValueError."""

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        try:
            return parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from None

    return callback


def lengths_option(flag: str, default: str, help_text: str) -> Callable[..., Any]:
    return click.option(
        flag,
        cls=GroupedOption,
        group="Load",
        callback=parsed_by(Lengths.parse),
        metavar="N|LOW-HIGH",
        default=default,
        help=f"{help_text}  [{default}]",
    )


def load_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator. The load's seed is a --seed of the command's own."""
    for decorate in reversed(
        (
            count_option("--num-prompts", 64, "Requests of the load."),
            lengths_option("--input-len", "32-512", "Prompt tokens, fixed or drawn from a range."),
            lengths_option("--output-len", "16-128", "Output tokens, fixed or drawn from a range."),
            count_option("--prefix-len", 0, "Tokens that all prompts begin with, beside their own.", least=0),
            click.option(
                "--dataset",
                cls=GroupedOption,
                group="Load",
                type=click.Path(dir_okay=False),
                metavar="FILE",
                help='Prompts of a JSONL file instead: {"prompt": …} or {"messages": …}, maybe with "max_tokens".',
            ),
        )
    ):
        function = decorate(function)
    return function


def count_option(flag: str, default: int, help_text: str, *, group: str = "Load", least: int = 1) -> Callable[..., Any]:
    """A whole number, whose default stands in the help."""
    return click.option(
        flag,
        cls=GroupedOption,
        group=group,
        type=click.IntRange(least),
        metavar="N",
        default=default,
        help=f"{help_text}  [{default}]",
    )


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: where the result goes for programs."""
    help_text = "Also write configuration, machine and every figure to FILE."
    kind = click.Path(dir_okay=False, writable=True)
    return click.option(
        "--json", "json_file", cls=GroupedOption, group="Results", type=kind, metavar="FILE", help=help_text
    )(function)


def make_load(flags: dict[str, Any], seed: int, vocab_size: int) -> list[LoadRequest]:
    """The load options, parsed. Raises ConfigError."""
    if flags["dataset"]:
        return read_load(flags["dataset"], flags["num_prompts"], flags["output_len"], seed)
    return random_load(
        flags["num_prompts"],
        flags["input_len"],
        flags["output_len"],
        seed=seed,
        vocab_size=vocab_size,
        prefix_len=flags["prefix_len"],
    )


def plain(flags: dict[str, Any], *names: str) -> dict[str, Any]:
    """These flags as a result's JSON has them."""
    return {name: str(flags[name]) if isinstance(flags[name], Lengths) else flags[name] for name in names}


LOAD_NAMES = ("num_prompts", "input_len", "output_len", "prefix_len", "dataset")
