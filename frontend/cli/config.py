"""`paged-serve config show`: the configuration that `serve` would use, and where each value comes from."""

from typing import Any

import click

from ..config.options import config_options, resolve
from ..config.settings import SETTINGS
from ..config.vllm.flags import ServeCommand


@click.group("config")
def command() -> None:
    """Inspect the configuration."""


@command.command("show", cls=ServeCommand, short_help="Show each value, and where it comes from.")
@click.option("--json", "as_json", is_flag=True, help="Print only the values, as one line of JSON.")
@config_options
def show(*, as_json: bool, **flags: Any) -> None:
    """Show each value that `serve` would use with these options, and where it comes from."""
    resolved = resolve(flags)
    if as_json:
        click.echo(resolved.config.for_print())
        return
    rows = []
    for setting in SETTINGS:
        layer, field = setting.key.split(".")
        value = getattr(getattr(resolved.config, layer), field)
        if field == "api_keys":
            value = ("***",) * len(value)
        text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        rows.append((setting.name, "-" if value is None else text, resolved.origins[setting.key]))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, text, origin in rows:
        click.echo(f"{name:<{widths[0]}}  {text:<{widths[1]}}  {origin}".rstrip())
