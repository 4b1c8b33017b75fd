"""Commands whose help lists the options under headings."""

from typing import Any

import click

from .words import closest


class GroupedOption(click.Option):
    """An option of a single command, listed under the heading `group`."""

    def __init__(self, *arguments: Any, group: str, **options: Any):
        super().__init__(*arguments, **options)
        self.group = group

    def get_help_extra(self, ctx: click.Context) -> Any:
        """No extra text: the help text already has the default, and error messages give the range."""
        return {}


class GroupedCommand(click.Command):
    """Lists the settings in the help under the headings of their groups."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            flags = {flag.lstrip("-"): flag for parameter in self.get_params(ctx) for flag in parameter.opts}
            meant = closest(error.option_name.lstrip("-").replace("_", "-"), flags)
            raise click.NoSuchOption(
                error.option_name, possibilities=[flags[meant]] if meant else [], ctx=ctx
            ) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)) is not None:
                groups.setdefault(_group_of(parameter), []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records, col_max=34)


def _group_of(option: click.Option) -> str:
    return option.group if isinstance(option, GroupedOption) else "Options"
