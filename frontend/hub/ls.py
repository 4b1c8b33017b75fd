"""`paged-serve ls`: lists the downloaded models."""

import click

from ..config.model_folder import DEMO_MODEL_NAME
from .cache import age_text, cached_models, size_text


@click.command("ls")
def command() -> None:
    """List the models that `pull` and `serve` have downloaded."""
    rows = [("NAME", "SIZE", "ARCHITECTURE", "LAST USED")]
    for model in cached_models():
        rows.append((model.name, size_text(model.num_bytes), model.architecture, age_text(model.used_at)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for name, size, architecture, used in rows:
        click.echo(f"{name:{widths[0]}}  {size:>{widths[1]}}  {architecture:{widths[2]}}  {used}".rstrip())
    if len(rows) == 1:
        click.echo(f"(none; `paged-serve` alone serves the built-in model {DEMO_MODEL_NAME})", err=True)
