"""`paged-serve completion`: prints the script that lets a shell complete commands and options."""

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script, for example: eval "$(paged-serve completion bash)"."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "paged-serve", "_PAGED_SERVE_COMPLETE").source())
