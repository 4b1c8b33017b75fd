"""`paged-serve doctor`: the flight recorder's bundles, and what one of them tells, in words."""

import time
from pathlib import Path

import click

from .options import resolve


@click.command("doctor")
@click.argument("bundle", type=click.Path(dir_okay=False, path_type=Path), required=False)
@click.option("--dump-dir", metavar="FOLDER", help="Where the bundles lie; as for `serve`.")
@click.option("--stacks", is_flag=True, help="All stacks and log lines, too.")
def command(bundle: Path | None, dump_dir: str | None, *, stacks: bool) -> None:
    """Say what happened when BUNDLE was written; without BUNDLE, list those that there are."""
    from ..supervision.bundle import bundles_in, dump_folder, read_bundle
    from ..supervision.diagnosis import diagnosis, everything

    if bundle is not None:
        found = read_bundle(bundle)
        click.echo("\n".join(diagnosis(found) + (everything(found) if stacks else [])))
        return
    folder = dump_folder(resolve({"dump_dir": dump_dir}).config.server.dump_dir)
    paths = [] if folder is None else bundles_in(folder)
    if not paths:
        click.echo(f"no bundles in {folder}; a server leaves one when a process of it is lost, and at SIGUSR1")
    for path in paths:
        told = read_bundle(path)
        click.echo(f"{path}  {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(told.written_at))}  {told.reason}")
