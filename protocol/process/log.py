"""One line per event on stderr, the same shape in every process."""

import logging
import sys
import time
from typing import Any

import msgspec

from .log_format import in_colour, in_json
from .log_writer import StderrHandler

_COLOURS = {"DEBUG": "2", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}
# Escaped, so that text from a request can neither forge a log line nor control a terminal.
_CONTROL_CHARACTERS = {code: f"\\x{code:02x}" for code in (*range(32), 127, *range(128, 160))} | {10: "\\n", 9: "\\t"}


class _LineFormatter(logging.Formatter):
    """`YYYY-MM-DD HH:MM:SS.mmm LEVEL process message`, then the traceback if there is one."""

    def __init__(self, process_name: str, colour: bool):
        super().__init__()
        self._process_name = process_name
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        message = record.getMessage().translate(_CONTROL_CHARACTERS)
        line = f"{clock}.{int(record.msecs):03d} {record.levelname:<7} {self._process_name} {message}"
        if self._colour and record.levelname in _COLOURS:
            line = f"\033[{_COLOURS[record.levelname]}m{line}\033[0m"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _JsonFormatter(logging.Formatter):
    """One JSON object per line: `time` in seconds since 1970, the message, and the record's extra `fields`."""

    def __init__(self, process_name: str):
        super().__init__()
        self._process_name = process_name

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "process": self._process_name,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields).decode()


def configure_logging(process_name: str, level: str = "info") -> StderrHandler:
    """Send everything from `level` up to stderr; a second call replaces the first. Returns the root logger's handler.

    PAGED_SERVE_LOG_FORMAT=json gives JSON lines.
    """
    formatter: logging.Formatter
    if in_json():
        formatter = _JsonFormatter(process_name)
    else:
        formatter = _LineFormatter(process_name, colour=in_colour(sys.stderr))
    root = logging.getLogger()
    handler = next((each for each in root.handlers if isinstance(each, StderrHandler)), None) or StderrHandler()
    handler.setFormatter(formatter)
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    return handler
