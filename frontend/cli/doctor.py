"""`paged-serve doctor`: describes the machine, lists the reports of lost processes, or summarizes one."""

import json
import subprocess
import sys
import time
from pathlib import Path

import click

from paged_serve.protocol.errors import ConfigError

from ..config.options import resolve
from ..python_command import python_command, python_environment

MACHINE_WITHIN_S = 60


@click.command("doctor")
@click.argument("bundle", metavar="[REPORT]", type=click.Path(dir_okay=False, path_type=Path), required=False)
@click.option("--dump-dir", metavar="FOLDER", help="Folder of the reports, as for `serve`.")
@click.option("--stacks", is_flag=True, help="Also show all stacks and log lines.")
def command(bundle: Path | None, dump_dir: str | None, *, stacks: bool) -> None:
    """Show what happened when REPORT was written; without REPORT, describe the machine and list the reports."""
    from ..supervision.flight_recorder.bundle import dump_folder, read_bundle
    from ..supervision.flight_recorder.diagnosis import diagnosis, everything

    if bundle is not None:
        found = read_bundle(bundle)
        click.echo("\n".join(diagnosis(found) + (everything(found) if stacks else [])))
        return
    show_machine()
    list_reports(dump_folder(resolve({"dump_dir": dump_dir}).config.server.dump_dir))


def list_reports(folder: Path | None) -> None:
    """Print a line for each report, the unreadable ones included."""
    from ..supervision.flight_recorder.bundle import bundles_in, read_bundle

    if folder is None:
        click.echo("reports are turned off: --dump-dir is none, or this user has no home folder (set --dump-dir)")
        return
    paths = bundles_in(folder)
    if not paths:
        click.echo(f"no reports in {folder}; a server writes one when it loses a process, and on SIGUSR1")
    for path in paths:
        try:
            found = read_bundle(path)
        except ConfigError as error:  # damaged, or of another version
            click.echo(str(error))
            continue
        click.echo(f"{path}  {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(found.written_at))}  {found.reason}")


def show_machine() -> None:
    """Print the machine's CPU and kernels, as reported by a worker process: only workers know the kernels."""
    from paged_serve.protocol.process.log_format import in_colour

    command, environment = python_command("paged_serve.workers.process.machine"), python_environment()
    report = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=MACHINE_WITHIN_S, check=False
    )
    if report.returncode:
        click.echo(f"cannot describe this machine's kernels: {report.stderr.strip()}", err=True)
        return
    rows = json.loads(report.stdout)
    width = max(len(label) for label, _ in rows)
    for label, text in rows:
        is_bad = label in ("slow", "remedy") and in_colour(sys.stdout)
        click.secho(f"{label:<{width}}  {text}", fg="red" if is_bad else None)
