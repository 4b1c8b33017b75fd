"""Prints why a command ends as its last line on stderr, in plain text, or as JSON when all lines are JSON."""

import logging

from paged_serve.protocol.process.log_format import in_json


def print_end(reason: str) -> None:
    from paged_serve.protocol.process.log import configure_logging  # late: `--help` needs no msgspec

    lines = configure_logging("paged-serve")
    if in_json():
        logging.getLogger(__name__).error("%s", reason)
    else:
        lines.write(f"paged-serve: {reason}")
