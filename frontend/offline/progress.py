"""The bar that LLM shows on a terminal: prompts done, tokens a second in and out."""

import sys
import time
from types import TracebackType

from ..progress_bar import LoadingBar
from .outputs import RequestOutput

DRAW_EVERY_S = 0.1


class ProgressBar:
    """A context; silent where stderr is no terminal."""

    def __init__(self, num_prompts: int, enabled: bool):
        self._total = num_prompts
        self._bar = LoadingBar(sys.stderr) if enabled and sys.stderr.isatty() else None
        self._started = self._drawn_at = time.monotonic()
        self._num_done = self._prompt_tokens = self._output_tokens = 0

    def __enter__(self) -> "ProgressBar":
        return self

    def done(self, output: RequestOutput) -> None:
        self._num_done += 1
        self._prompt_tokens += len(output.prompt_token_ids)
        self._output_tokens += sum(len(sequence.token_ids) for sequence in output.outputs)
        now = time.monotonic()
        if self._bar is not None and now - self._drawn_at >= DRAW_EVERY_S:
            self._drawn_at = now
            self._bar(self.summary(now), self._num_done, self._total)

    def summary(self, now: float) -> str:
        elapsed_s = max(now - self._started, 1e-6)
        speed_in, speed_out = self._prompt_tokens / elapsed_s, self._output_tokens / elapsed_s
        return f"{self._num_done}/{self._total} prompts, in {speed_in:,.0f} tok/s, out {speed_out:,.0f} tok/s"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.clear()
            sys.stderr.write(self.summary(time.monotonic()) + "\n")
