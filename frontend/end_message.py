"""Prints why a command ends as its last line on stderr, in plain text, or as JSON when all lines are JSON."""

import click

from paged_serve.protocol.process.log_format import in_json


def print_end(reason: str) -> None:
    if in_json():
        import logging

        from paged_serve.protocol.process.log import configure_logging

        configure_logging("paged-serve")
        logging.getLogger(__name__).error("%s", reason)
    else:
        click.echo(f"paged-serve: {reason}", err=True)
