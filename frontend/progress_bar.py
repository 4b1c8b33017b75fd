"""The loading bar of the command line, LLM and the benchmarks."""

import contextlib
import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO

from paged_serve.protocol.process.log_format import in_json

log = logging.getLogger(__name__)

BAR_CELLS = 30
PLAIN_LINE_S = 3.0  # before the first line of progress and between two, when stderr is not a terminal


class LoadingBar:
    """One bar for all processes on a terminal; elsewhere an occasional line."""

    def __init__(self, stream: TextIO = sys.stderr, write: Callable[[str], None] | None = None):
        """`write` replaces the stream's own method: that of a server's log waits for no reader."""
        self._stream = stream
        self._write = write or self._write_to_stream
        self._on_terminal = stream.isatty()
        self._next_line = time.monotonic() + PLAIN_LINE_S
        self._drawn = False
        self._last_text = ""  # the subject of the last line; "" once it is done

    def __call__(self, text: str, done: int, total: int) -> None:
        share = min(1.0, done / total) if total else 0.0
        if in_json():
            if (now := time.monotonic()) >= self._next_line:
                self._next_line = now + PLAIN_LINE_S
                log.info("%s", text, extra={"fields": {"done": done, "total": total}})
            return
        if self._on_terminal:
            filled = round(share * BAR_CELLS)
            bar = "█" * filled + "░" * (BAR_CELLS - filled)
            self._write(f"\033[K{bar} {share:4.0%} {text}\r")  # log lines of the children overwrite it
            self._drawn = True
        elif self._is_due(text, share):
            self._write(f"{text} {share:.0%}\n")

    def _is_due(self, text: str, share: float) -> bool:
        """Whether a line is due: after a while, and from then on also at each end and each beginning."""
        now = time.monotonic()
        is_next = bool(self._last_text) and (text != self._last_text or share == 1.0)
        if now < self._next_line and not is_next:
            return False
        self._next_line = now + PLAIN_LINE_S
        self._last_text = text if share < 1.0 else ""
        return True

    def clear(self) -> None:
        if self._drawn:
            self._write("\033[K")
            self._drawn = False

    def _write_to_stream(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the reader of a pipe is gone; loading continues
            self._stream.write(text)
            self._stream.flush()
