"""The progress bar of LLM, on a terminal and in a notebook: finished prompts, input and output tokens per second."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from .outputs import RequestOutput

MakeBar = Callable[..., Any]  # tqdm, or a callable with its arguments


class ProgressBar:
    """A context manager. `use_tqdm`: whether to show a bar on a terminal or in a notebook, or a callable that makes
    one from tqdm's arguments."""

    def __init__(self, num_prompts: int, use_tqdm: bool | MakeBar):
        make = use_tqdm if callable(use_tqdm) else _tqdm() if use_tqdm else None
        self._bar = (
            None if make is None else make(total=num_prompts, desc="Prompts", dynamic_ncols=True, postfix="starting")
        )
        self._started = time.monotonic()
        self._prompt_tokens = self._output_tokens = 0

    def __enter__(self) -> "ProgressBar":
        return self

    def done(self, output: RequestOutput) -> None:
        self.add(len(output.prompt_token_ids), sum(len(sequence.token_ids) for sequence in output.outputs))

    def add(self, prompt_tokens: int, output_tokens: int = 0) -> None:
        """Count one finished prompt."""
        if self._bar is None:
            return
        self._prompt_tokens += prompt_tokens
        self._output_tokens += output_tokens
        elapsed_s = max(time.monotonic() - self._started, 1e-6)
        speed_in, speed_out = self._prompt_tokens / elapsed_s, self._output_tokens / elapsed_s
        self._bar.postfix = f"in {speed_in:,.0f} tok/s, out {speed_out:,.0f} tok/s"
        self._bar.update(1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()


def _tqdm() -> MakeBar | None:
    """tqdm; None if stderr is neither a terminal nor a notebook's."""
    in_notebook = "ipykernel" in sys.modules
    if not in_notebook and not sys.stderr.isatty():
        return None
    from tqdm.auto import tqdm  # imported late: without a terminal it is not needed

    return tqdm  # type: ignore[no-any-return]
