"""The options that describe a load, shared by `throughput` and `serve`."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ...config.grouped_command import GroupedOption
from .load import Lengths, LoadRequest, random_load, read_load


class _WritableFile(click.Path):
    """A file that can be written, so that a benchmark of an hour does not end with an unwritable result."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        folder = Path(value).absolute().parent
        if not folder.is_dir():
            self.fail(f"there is no folder {folder}; make it first", param, ctx)
        if not Path(value).exists() and not os.access(folder, os.W_OK):
            self.fail(f"the folder {folder} is not writable", param, ctx)
        return super().convert(value, param, ctx)


WRITABLE = _WritableFile(dir_okay=False, writable=True)


def parsed_by(parse: Callable[[Any], Any]) -> Callable[..., Any]:
    """An option callback that returns the parsed value, or turns the ValueError of `parse` into a usage error."""

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
    """Decorator that adds the options of a load, except --seed, which each command defines."""
    for decorate in reversed(
        (
            count_option("--num-prompts", 64, "Number of requests."),
            lengths_option("--input-len", "32-512", "Prompt tokens, fixed or drawn from a range."),
            lengths_option("--output-len", "16-128", "Output tokens, fixed or drawn from a range."),
            count_option("--prefix-len", 0, "Shared tokens put before each prompt.", least=0),
            click.option(
                "--dataset",
                cls=GroupedOption,
                group="Load",
                type=click.Path(exists=True, dir_okay=False),
                metavar="FILE",
                help='Read prompts from a JSONL file: {"prompt": …} or {"messages": …}, optionally "max_tokens".',
            ),
        )
    ):
        function = decorate(function)
    return function


def count_option(flag: str, default: int, help_text: str, *, group: str = "Load", least: int = 1) -> Callable[..., Any]:
    """An integer option whose help shows its default."""
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
    """Decorator that adds --json."""
    help_text = "Also write all figures, the configuration and the machine to FILE."
    return click.option(
        "--json", "json_file", cls=GroupedOption, group="Results", type=WRITABLE, metavar="FILE", help=help_text
    )(function)


def make_load(flags: dict[str, Any], seed: int, vocab_size: int) -> list[LoadRequest]:
    """The load that the options describe. Raises ConfigError."""
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
    """The named flags in the form of a result's JSON."""
    return {name: str(flags[name]) if isinstance(flags[name], Lengths) else flags[name] for name in names}


LOAD_NAMES = ("num_prompts", "input_len", "output_len", "prefix_len", "dataset")
