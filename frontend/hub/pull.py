"""`paged-serve pull`: downloads a model."""

import click

from paged_serve.protocol.errors import ConfigError

from ..config.model_folder import find_model_folder, is_hub_name
from .cache import cached_models, find, size_text
from .gguf_files import split_name


@click.command("pull")
@click.argument("model")
@click.option("--revision", metavar="REVISION", default="", help="Branch, tag or commit; default: the main branch.")
def command(*, model: str, revision: str) -> None:
    """Download MODEL, a name like org/model or org/model:Q4_K_M, or update it; `paged-serve MODEL` then starts from
    the disk."""
    if not is_hub_name(model):
        raise ConfigError(f"{model} is not a name on the hub; give one like Qwen/Qwen3-0.6B")
    folder = find_model_folder(model, revision)
    click.echo(f"{size_text(find(cached_models(), split_name(model)[0]).num_bytes)} in {folder}")
