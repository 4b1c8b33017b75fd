"""Why a command ends, as its last line on stderr: plain, or as JSON where all lines are."""

import logging

import click


def print_end(reason: str) -> None:
    from paged_serve.protocol.process.log import configure_logging, in_json

    if in_json():
        configure_logging("paged-serve")
        logging.getLogger(__name__).error("%s", reason)
    else:
        click.echo(f"paged-serve: {reason}", err=True)
