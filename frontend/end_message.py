"""Prints why a command ends as its last line on stderr, in plain text, or as JSON when all lines are JSON."""

import logging

import click


def print_end(reason: str) -> None:
    from paged_serve.protocol.process.log import configure_logging, in_json

    if in_json():
        configure_logging("paged-serve")
        logging.getLogger(__name__).error("%s", reason)
    else:
        click.echo(f"paged-serve: {reason}", err=True)
