"""How lines on stderr look. Apart from log.py, so that `--help` pays for neither logging nor msgspec."""

import os
from typing import TextIO


def in_json() -> bool:
    """Whether each line on stderr is a JSON object."""
    return os.environ.get("PAGED_SERVE_LOG_FORMAT") == "json"


def in_colour(stream: TextIO) -> bool:
    """Colour is for terminals only, and not where NO_COLOR is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR")
