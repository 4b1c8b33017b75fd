"""`paged-serve rm`: removes downloaded models."""

import click

from .cache import cached_models, find, remove, size_text


@click.command("rm")
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def command(*, models: tuple[str, ...], yes: bool) -> None:
    """Remove downloaded models, all revisions of each."""
    cached = cached_models()
    found = [find(cached, name) for name in dict.fromkeys(models)]  # find all before removing any
    for model in found:
        size = size_text(model.num_bytes)
        if yes or click.confirm(f"Remove {model.name} ({size})?"):
            remove(model)
            click.echo(f"removed {model.name}, {size}")
